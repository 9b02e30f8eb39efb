"""Running stages from the command line, and making what they need.

Tasks, demonstrations and the base policy follow from the profile alone, so a command that needs them makes them. A
policy that was trained is somebody's choice: it must exist.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Any

from flywheel.cli.progress import Bar, bar
from flywheel.config import Config
from flywheel.jobs.launcher import Launcher, Listener
from flywheel.jobs.tasks import SPLITS, build_tasks, task_file
from flywheel.resources.tracking import Tracking
from flywheel.seeds import derive_seed
from flywheel.types import PolicyRef, Split
from flywheel.workspace import Workspace

BASE = "base"
"""Version of the policy before any training on trajectories."""


class Stages:
    """Runs stages of one configuration, one after another."""

    def __init__(self, config: Config, launcher: Launcher, bar: Bar, stack: ExitStack) -> None:
        self.config, self.workspace = config, Workspace(config)
        self._launcher, self._bar, self._stack = launcher, bar, stack

    def of(self, config: Config) -> "Stages":
        """The same processes and bar for another configuration."""
        return Stages(config, self._launcher, self._bar, self._stack)

    def run(self, stage: str, key: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """The stage's result; its files lie in `runs/<stage>-<key>`. Raises the stage's own `FlywheelError`."""
        tracking = self._tracking
        tracked = tracking.start(f"{stage}-{key}", self.config, args) if tracking else None
        try:
            result = self.look(stage, key, args, tracked.add if tracked else None)
        except BaseException:
            if tracked:
                tracked.fail()
            raise
        if tracked:
            tracked.finish(result)
        return result

    @cached_property
    def _tracking(self) -> Tracking | None:
        """Connected for the first stage that is tracked, not before: a look must not create a database."""
        return self._stack.enter_context(Tracking.of(self.config))

    def look(
        self,
        stage: str,
        key: str,
        args: Mapping[str, Any],
        on_metrics: Callable[[dict[str, float]], None] | None = None,
    ) -> dict[str, Any]:
        """As `run`, for stages that only look: they leave no run in MLflow."""
        self._bar.begin(stage, key)
        listener = Listener(progress=self._bar.advance, log=self._bar.say, metrics=on_metrics)
        return self._launcher.run(stage, self.config, args, self.workspace.run_dir(stage, key), listener)

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
    with bar() as shown, Launcher() as launcher, ExitStack() as stack:
        yield Stages(config, launcher, shown, stack)
