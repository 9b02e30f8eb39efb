"""The command line in this process: the same `main` as the console script, around one warm launcher for all tests."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flywheel.cli.app import main
from flywheel.jobs.launcher import Launcher

QUIET = (
    "model.threads=1",
    "rollout.workers=1",
    "rollout.concurrency=16",
    "rollout.max_tokens=12",
    "rollout.samples=2",
    "tasks.train=120",
    "tasks.heldout=24",
    "tasks.demonstrations=8",
    "model.tiny.vision_steps=1",
    "model.tiny.grounding_steps=1",
    "sft.steps=2",
    "store.fsync=false",
    "tracking.enabled=false",
)
"""Every stage in about a second."""


@dataclass(frozen=True)
class Ran:
    """What a command left: its status, and what it wrote where."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one sentence of a refusal; anything else on standard error is no refusal."""
        lines = self.err.splitlines()
        assert self.code == 1, (self.code, self.out, self.err)
        assert len(lines) == 1, lines
        assert lines[0][-1] in ".?", lines
        return lines[0]


Flywheel = Callable[..., Ran]


class _Kept(Launcher):
    """Outlives the commands that use it: warming up takes five seconds."""

    def close(self) -> None:
        """Nothing; the fixture ends it."""

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    kept = _Kept()
    yield kept
    kept.end()


@pytest.fixture
def flywheel(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Flywheel:
    """`flywheel("sql", "SELECT 1")` runs it and says what came of it."""

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr("sys.argv", ["flywheel", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def staged(flywheel: Flywheel, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> Flywheel:
    """The same for commands that run stages: warm launcher, and small settings where nothing else is given."""
    monkeypatch.setattr("flywheel.cli.stages.Launcher", lambda: launcher)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str | Path) -> Ran:
        given = {str(argument).partition("=")[0] for argument in arguments}
        small = [setting for setting in QUIET if setting.partition("=")[0] not in given]
        return flywheel(*arguments, *(word for setting in small for word in ("--set", setting)))

    return run


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For commands in a process of their own."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
