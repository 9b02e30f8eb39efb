"""`flywheel desktops setup`: made once, whole or not at all, and one sentence when it cannot be."""

import sys
import threading
from pathlib import Path

import pytest

from flywheel.envs.server import venvs
from flywheel.envs.server.venvs import STAND_INS, Venv, build, guest_venv, server_venv
from flywheel.errors import InfrastructureError


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Venv:
    """An environment without packages, so that no network is needed."""
    monkeypatch.setenv("FLYWHEEL_DESKTOPS", str(tmp_path / "desktops"))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# nothing\n")
    return Venv("small-venv", Path(sys.executable), requirements, stand_ins=("easyocr/__init__.py",))


def test_it_is_made_once(small: Venv) -> None:
    told: list[tuple[int, int]] = []
    assert build(small, lambda *counts: told.append(counts))
    assert told[0] == (0, 0)
    assert small.ready()
    (made,) = small.folder.glob("lib/python3*/site-packages/easyocr/__init__.py")
    assert made.read_text() == STAND_INS["easyocr/__init__.py"]
    before = (small.folder / ".flywheel").stat().st_mtime_ns
    assert not build(small, lambda *_: pytest.fail("there was nothing to do"))
    assert (small.folder / ".flywheel").stat().st_mtime_ns == before


def test_it_is_made_again_when_what_it_is_made_of_changes_or_it_does_not_run(small: Venv) -> None:
    build(small, lambda *_: None)
    small.requirements.write_text("# something else\n")
    assert not small.ready()
    assert build(small, lambda *_: None)
    small.bin_python.unlink()
    assert not small.ready()
    assert build(small, lambda *_: None)
    assert small.ready()


def test_a_package_that_cannot_be_had_is_one_sentence_and_leaves_it_unready(small: Venv, tmp_path: Path) -> None:
    small.requirements.write_text(f"{tmp_path}/nowhere.whl\n")
    with pytest.raises(InfrastructureError, match=r"small-venv could not be filled .*nowhere.whl") as caught:
        build(small, lambda *_: None)
    assert "\n" not in str(caught.value)
    assert not small.ready()


def test_a_python_that_does_not_run_is_one_sentence(small: Venv, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no luck >&2; exit 3\n")
    broken.chmod(0o755)
    with pytest.raises(InfrastructureError, match=r"could not be made .no luck"):
        build(Venv("small-venv", broken, small.requirements), lambda *_: None)


def test_two_at_once_make_it_once(small: Venv) -> None:
    made: list[bool] = []
    threads = [threading.Thread(target=lambda: made.append(build(small, lambda *_: None))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, True]


def test_a_folder_that_cannot_be_written_is_one_sentence(small: Venv, tmp_path: Path) -> None:
    (tmp_path / "desktops").write_text("a file")
    with pytest.raises(InfrastructureError, match="set FLYWHEEL_DESKTOPS to a folder of yours"):
        build(small, lambda *_: None)


def test_the_two_that_ship_are_pinned_and_know_their_python() -> None:
    server, guest = server_venv(), guest_venv()
    lines = server.requirements.read_text().split()
    assert "desktop-env==1.0.2" in lines
    assert all("==" in line for line in lines)
    assert not any(line.startswith(("torch", "transformers", "numpy==2")) for line in lines)
    assert guest.system_packages
    assert guest.python == venvs.SYSTEM_PYTHON
