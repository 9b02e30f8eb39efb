"""The whole flywheel through Dagster in this one process: what `flywheel demo` runs.

Every asset is really materialised, so that the UI shows all of it afterwards. What is there already and still current
is skipped: a demo that was killed goes on where it was. One Dagster run covers what belongs together, e.g. the four
assets of an iteration.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import dagster as dg

from flywheel.assets.automation import GROUPS
from flywheel.assets.catalogue import build_definitions
from flywheel.assets.history import best_iteration, decide, history
from flywheel.assets.intact import Lineage, check_evaluations, is_current, latest
from flywheel.assets.lock import driving
from flywheel.assets.partitions import iteration_of
from flywheel.config import Config
from flywheel.errors import FlywheelError
from flywheel.jobs.launcher import Advance, Launcher
from flywheel.resources.instance import quick_sqlite
from flywheel.resources.jobs import Jobs
from flywheel.resources.tracking import Tracking
from flywheel.workspace import Workspace, iteration_name

DRIVER = "flywheel/driver"
"""Tag of the driver's runs; after a kill it tells them from runs that somebody else has in progress."""
FIGURES = ("success_rate", "ci_low", "ci_high", "episodes", "wall_seconds", "stage_seconds")


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One materialised asset. Rates are None where nothing was played; `skipped` means an earlier run made it."""

    stage: str
    iteration: int | None
    skipped: bool
    success_rate: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    episodes: int | None = None
    wall_seconds: float = 0.0
    stage_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A Dagster run begins: these assets of this partition will be made."""

    job: str
    partition: str | None
    assets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A heavy stage was launched."""

    stage: str
    key: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """What the running stage said."""

    text: str


@dataclass(frozen=True, slots=True)
class Decided:
    """What the plateau rule says after an iteration."""

    iteration: int
    stop: bool
    reason: str


Event = RunStarted | StageStarted | Advance | LogLine | StageRecord | Decided
OnEvent = Callable[[Event], None]


@dataclass(slots=True)
class FlywheelRun:
    """All stages in order. `overhead_seconds` is what was spent outside the stages: Dagster, process start-up."""

    stages: list[StageRecord] = field(default_factory=list)
    best_iteration: int = 0
    reason: str = ""
    wall_seconds: float = 0.0
    overhead_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Watcher:
    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self.progress: Callable[[Advance], None] = on_event

    def started(self, stage: str, key: str) -> None:
        self._on_event(StageStarted(stage, key))

    def log(self, line: str) -> None:
        self._on_event(LogLine(line))


def run_flywheel(
    config: Config, instance: dg.DagsterInstance, on_event: OnEvent, launcher: Launcher | None = None
) -> FlywheelRun:
    """Alignment, iterations until success stops rising, policy gradient on the best one, and the control.

    Raises `FlywheelError`: the sentence of the stage or blocking check that failed, or `PartitionBusyError` when
    another process drives this home. What was made until then stays and is skipped next time.
    """
    begun = time.monotonic()
    workspace = Workspace(config)
    report = FlywheelRun()
    with ExitStack() as stack:
        stack.enter_context(driving(workspace))
        stack.enter_context(quick_sqlite())
        launcher = launcher or stack.enter_context(Launcher())
        tracking = stack.enter_context(Tracking.of(config))
        jobs = Jobs(workspace, launcher, tracking, _Watcher(on_event))
        driver = _Driver(workspace, instance, build_definitions(config, {"jobs": jobs}), on_event, report)
        driver.close_orphans()
        driver.bring("alignment")
        report.best_iteration, report.reason = driver.turn()
        best = iteration_name(report.best_iteration)
        driver.bring("policy_gradient", best)
        driver.bring("control", best)
    report.wall_seconds = time.monotonic() - begun
    made = sum(record.stage_seconds for record in report.stages if not record.skipped)
    report.overhead_seconds = report.wall_seconds - made
    return report


class _Driver:
    def __init__(
        self,
        workspace: Workspace,
        instance: dg.DagsterInstance,
        definitions: dg.Definitions,
        on_event: OnEvent,
        report: FlywheelRun,
    ) -> None:
        self._workspace = workspace
        self._instance = instance
        self._lineage = Lineage(definitions)
        self._job = definitions.resolve_implicit_global_asset_job_def()
        self._on_event = on_event
        self._report = report

    def turn(self) -> tuple[int, str]:
        """Iterate until the plateau rule says stop; the best iteration and the rule's reason."""
        iteration = 0
        while True:
            iteration += 1
            self.bring("flywheel_iteration", iteration_name(iteration))
            decision = decide(self._workspace, iteration)
            self._on_event(Decided(iteration, decision.stop, decision.reason))
            if decision.stop:
                return best_iteration(history(self._workspace, iteration), decision), decision.reason

    def bring(self, job: str, partition: str | None = None) -> None:
        """Make what is missing or outdated of a group of assets, in one run, and record all of it."""
        missing = self._missing(GROUPS[job], partition)
        if missing:
            self._on_event(RunStarted(job, partition, tuple(missing)))
            self._execute(missing, partition)
        for asset in GROUPS[job]:
            record = self._record(asset, partition, skipped=asset not in missing)
            self._report.stages.append(record)
            self._on_event(record)

    def close_orphans(self) -> None:
        """Runs of a driver that was killed would be in progress for ever; we hold the lock, so they are orphans."""
        started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED], tags={DRIVER: "true"})
        for run in self._instance.get_runs(started):
            self._instance.report_run_canceled(run, message="The process that drove this run was killed.")

    def _missing(self, assets: tuple[str, ...], partition: str | None) -> list[str]:
        """Those that are not current, and those that depend on them."""
        missing: list[str] = []
        for asset in assets:
            key = dg.AssetKey(asset)
            above = {parent.to_user_string() for parent in self._lineage.parents(key)}
            if above & set(missing) or not is_current(self._instance, self._lineage, self._workspace, key, partition):
                missing.append(asset)
        return missing

    def _execute(self, assets: list[str], partition: str | None) -> None:
        run_id = str(uuid.uuid4())
        with self._sentences(run_id):
            self._job.execute_in_process(
                instance=self._instance,
                partition_key=partition,
                asset_selection=[dg.AssetKey(asset) for asset in assets],
                run_id=run_id,
                tags={DRIVER: "true"},
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )

    @contextmanager
    def _sentences(self, run_id: str) -> Iterator[None]:
        """A failed check and an interrupt in our own words; a stage's own error passes as it is."""
        try:
            yield
        except dg.DagsterExecutionInterruptedError:
            raise KeyboardInterrupt from None
        except dg.DagsterError as error:
            for check in check_evaluations(self._instance, run_id):
                if not check.passed:
                    where = f"{check.check_name} of {check.asset_key.to_user_string()}"
                    why = check.description or "its metadata in the UI says why."
                    raise FlywheelError(f"The check {where} failed: {why}") from error
            raise

    def _record(self, asset: str, partition: str | None, *, skipped: bool) -> StageRecord:
        found = latest(self._instance, dg.AssetKey(asset), partition)
        assert found is not None
        assert found.asset_materialization is not None
        metadata = found.asset_materialization.metadata
        figures: dict[str, Any] = {name: metadata[name].value for name in FIGURES if name in metadata}
        return StageRecord(asset, iteration_of(partition) if partition else None, skipped, **figures)
