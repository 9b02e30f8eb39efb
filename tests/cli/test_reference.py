"""The generated pages are what the code says today."""

from pathlib import Path

import pytest

from flywheel.cli.reference import PAGES, main
from flywheel.config import known_keys

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run `make docs`"


def test_every_setting_is_described() -> None:
    page = PAGES["configuration.md"]()
    for key, info in known_keys().items():
        assert info.description, f"{key} has no description"
        assert f"| `{key}` |" in page


def test_every_command_is_there() -> None:
    page = PAGES["cli.md"]()
    for command in ("demo", "dev", "doctor", "eval", "gc", "rollout", "show", "sql", "train sft", "train grpo"):
        assert f"## `flywheel {command}`" in page


def test_pages_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    main(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == set(PAGES)
