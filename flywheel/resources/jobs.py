"""Heavy stages under Dagster: launched through Pipes, followed by MLflow, ended with the step that started them."""

import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import dagster as dg

from flywheel.jobs.launcher import Advance, Launcher, Listener
from flywheel.resources.tracking import Tracking
from flywheel.workspace import Workspace

# Dagster's own message readers call its own preview functions, and warn of it at every launch.
warnings.filterwarnings("ignore", category=dg.PreviewWarning, module=r"dagster\._core\.pipes")


@dataclass(frozen=True, slots=True)
class StageRun:
    """A finished stage: what it returned, where its files lie, how long it took, how to find its curves."""

    result: dict[str, Any]
    run_dir: Path
    wall_seconds: float
    tracking_link: str | None = None

    @property
    def stage_seconds(self) -> float:
        """What the stage itself spent; the rest of `wall_seconds` is process start-up."""
        return float(self.result.get("seconds", self.wall_seconds))


class Watcher(Protocol):
    """Who wants to hear from stages."""

    def started(self, stage: str, key: str) -> None: ...

    def progress(self, advance: Advance) -> None: ...

    def log(self, line: str) -> None: ...


class Echo:
    """Repeats what jobs log on standard output, where Dagster's compute logs pick it up."""

    def started(self, stage: str, key: str) -> None:
        print(f"{stage} {key}", flush=True)

    def progress(self, advance: Advance) -> None:
        """Nothing: there is no bar in a log."""

    def log(self, line: str) -> None:
        print(line, flush=True)


class Jobs:
    """What assets launch heavy stages with; `watcher` hears from each while it runs."""

    def __init__(
        self,
        workspace: Workspace,
        launcher: Launcher,
        tracking: Tracking | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._workspace = workspace
        self._launcher = launcher
        self._tracking = tracking
        self._watcher = watcher or Echo()

    def run(self, context: dg.AssetExecutionContext, stage: str, key: str, args: Mapping[str, Any]) -> StageRun:
        """Run one stage to its end.

        Raises the stage's own `FlywheelError`. When the step is cancelled, the whole process group goes with it.
        """
        config = self._workspace.config
        run_dir = self._workspace.run_dir(stage, key)
        tracked = self._tracking.start(f"{stage}-{key}", config, args) if self._tracking else None
        listener = Listener(self._watcher.progress, self._watcher.log, tracked.add if tracked else None)
        self._watcher.started(stage, key)
        begun = time.monotonic()
        try:
            with dg.open_pipes_session(
                context, dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()
            ) as session:
                env = session.get_bootstrap_env_vars()
                result = self._launcher.run(stage, config, args, run_dir, listener, env=env)
        except BaseException:
            if tracked:
                tracked.fail()
            raise
        link = tracked.finish(result) if tracked else None
        return StageRun(result, run_dir, time.monotonic() - begun, link)

    def check(self, stage: str, key: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run a stage that only looks: no Pipes, no tracking. Raises `FlywheelError` like `run`."""
        run_dir = self._workspace.run_dir(stage, key)
        return self._launcher.run(stage, self._workspace.config, args, run_dir, Listener(log=self._watcher.log))


@dg.resource(
    required_resource_keys={"workspace"},
    config_schema={
        "warm": dg.Field(bool, True, description="fork stages from a worker that has imported them already"),
        "grace_seconds": dg.Field(float, 10.0, description="between SIGINT and SIGKILL when a step is cancelled"),
        "stages": dg.Field(str, "flywheel.jobs", description="package of the stage modules"),
    },
)
def jobs_resource(context: dg.InitResourceContext) -> Iterator[Jobs]:
    """Local process groups forked from a warm worker, which lives as long as the run."""
    workspace, knobs = context.resources.workspace, context.resource_config
    with (
        Launcher(warm=knobs["warm"], stages=knobs["stages"], grace=knobs["grace_seconds"]) as launcher,
        Tracking.of(workspace.config) as tracking,
    ):
        yield Jobs(workspace, launcher, tracking)
