"""Running stages from the command line, and making what they need.

Tasks, demonstrations and the base policy follow from the profile alone, so a command that needs them makes them. A
policy that was trained is somebody's choice: it must exist.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from flywheel.cli.progress import Bar, bar
from flywheel.config import Config
from flywheel.jobs.launcher import Launcher
from flywheel.jobs.tasks import SPLITS, build_tasks, task_file
from flywheel.seeds import derive_seed
from flywheel.types import PolicyRef, Split
from flywheel.workspace import Workspace

BASE = "base"
"""Version of the policy before any training on trajectories."""


class Stages:
    """Runs stages of one configuration, one after another."""

    def __init__(self, config: Config, launcher: Launcher, bar: Bar) -> None:
        self.config, self.workspace = config, Workspace(config)
        self._launcher, self._bar = launcher, bar

    def run(self, stage: str, key: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """The stage's result; its files lie in `runs/<stage>-<key>`. Raises the stage's own `FlywheelError`."""
        self._bar.begin(stage, key)
        return self._launcher.run(stage, self.config, args, self.workspace.run_dir(stage, key), self._bar.listener())

    def tasks(self, split: Split) -> str:
        """The file of a split, made if it is not there."""
        if not all((self.workspace.tasks_dir / f"{name}.jsonl").is_file() for name in SPLITS):
            self._bar.begin("tasks")
            build_tasks(self.workspace)
        return task_file(self.workspace, split)

    def demonstrations(self) -> str:
        """The folder of the demonstrations, made if they are not there."""
        folder = self.workspace.demonstrations_dir
        if not (folder / "dataset_info.json").is_file():
            self.make_demonstrations()
        return str(folder)

    def make_demonstrations(self) -> dict[str, Any]:
        """Have the oracle play, whether it has done so before or not."""
        args = {
            "tasks": self.tasks("train"),
            "out": str(self.workspace.demonstrations_dir),
            "seed": derive_seed(self.config.seed, "demonstrations"),
        }
        return self.run("demonstrations", self.workspace.tasks_key, args)

    def base(self) -> PolicyRef:
        """The base policy, made if it is not there."""
        if not (self.workspace.checkpoint_dir(BASE) / "policy.json").is_file():
            self.make_base()
        return self.workspace.policy(BASE)

    def make_base(self) -> dict[str, Any]:
        """Build or load the base policy, whether it is there or not."""
        return self.run("base_model", BASE, {"out": str(self.workspace.checkpoint_dir(BASE))})

    def train(self, init: PolicyRef, version: str, sets: list[str], steps: int, seed: int) -> dict[str, Any]:
        """Supervised fine-tuning of `init` into `version`."""
        args = {
            "sets": sets,
            "init": asdict(init),
            "out": str(self.workspace.checkpoint_dir(version)),
            "version": version,
            "steps": steps,
            "seed": seed,
        }
        return self.run("sft", version, args)


@contextmanager
def stages(config: Config) -> Iterator[Stages]:
    """Stages with a progress bar; leaving ends every process that was started."""
    with bar() as shown, Launcher() as launcher:
        yield Stages(config, launcher, shown)
