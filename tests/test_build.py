"""The Makefile, the pins and the CI script: what can be known of them without installing anything."""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TARGETS = ("install", "demo", "test", "dev", "bench", "lint", "docs")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def declared(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in listed]


def test_every_requirement_is_pinned_inside_its_range() -> None:
    pinned = pins()
    for requirement in declared("dev"):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_pins_are_plain_and_cover_what_is_pulled() -> None:
    pinned, waiting, seen = pins(), declared("dev"), set()
    assert (pinned["torch"], pinned["transformers"]) == ("2.13.0", "5.12.1")
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*(\.post\d+)?", version) for version in pinned.values())
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        # CUDA's own packages come with torch's builds for it, which pin them; they are not on every platform.
        assert name in pinned or name.startswith(("nvidia-", "cuda-", "triton")), name
        waiting += map(Requirement, importlib.metadata.requires(name) or [])


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)


def test_help_names_every_target() -> None:
    shown = make().stdout
    assert all(f"make {target} " in shown for target in TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_sets_itself_up_and_passes_arguments_on(target: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for file in ("pyproject.toml", "constraints.txt"):
        (tmp_path / file).touch()
    planned = make("-n", target, "ARGS=--json out.json --seed 3", folder=tmp_path).stdout
    assert "-m venv --clear .venv" in planned
    assert "pip install" in planned
    assert ("--json out.json --seed 3" in planned) is (target in ("demo", "dev", "test", "bench"))


def test_an_old_python_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for file in ("pyproject.toml", "constraints.txt"):
        (tmp_path / file).touch()
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    ended = make("install", f"PYTHON={old}", folder=tmp_path)
    assert ended.returncode != 0
    assert "install Python 3.11 or newer" in ended.stderr.splitlines()[0]
    assert not (tmp_path / ".venv").exists()


def test_the_ci_script_is_sound() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)
    assert all(f"make {target}" in script.read_text() for target in ("test", "demo", "lint"))
