"""Jobs, the sensor that keeps the flywheel turning until success stops rising, and the nightly schedule."""

from collections.abc import Mapping

import dagster as dg

from flywheel.assets.evaluation import nightly_eval_report
from flywheel.assets.history import best_iteration, best_report, collapse, decide, history
from flywheel.assets.iterations import eval_report
from flywheel.assets.lock import driver_at_work
from flywheel.assets.partitions import NIGHTS, iteration_of
from flywheel.errors import FlywheelError
from flywheel.workspace import Workspace, iteration_name

ALIGNMENT = ("tasks", "demonstrations", "base_model", "sft_checkpoint", "sft_eval_report")
ITERATION = ("trajectories", "sft_set", "checkpoint", "eval_report")
POLICY_GRADIENT = ("grpo_checkpoint", "grpo_eval_report")
CONTROL = ("control_checkpoint", "control_eval_report")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "alignment": ALIGNMENT,
    "flywheel_iteration": ITERATION,
    "policy_gradient": POLICY_GRADIENT,
    "control": CONTROL,
    "nightly_evaluation": (nightly_eval_report.key.to_user_string(),),
}
"""Job -> its assets, in order; each job is one run."""

alignment, flywheel_iteration, policy_gradient, control, nightly_evaluation = JOBS = [
    dg.define_asset_job(name, selection=list(assets)) for name, assets in GROUPS.items()
]


@dg.asset_sensor(
    asset_key=eval_report.key,
    jobs=[flywheel_iteration, policy_gradient],
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=5,
)
def plateau_sensor(
    context: dg.SensorEvaluationContext, asset_event: dg.EventLogEntry, workspace: dg.ResourceParam[Workspace]
) -> dg.RunRequest | dg.SkipReason:
    """After an evaluation: the next iteration, or policy gradient on the best one when success has stopped rising."""
    partition = asset_event.dagster_event.partition if asset_event.dagster_event else None
    if partition is None:
        return dg.SkipReason("The evaluation belongs to no iteration.")
    try:
        step = next_step(workspace, iteration_of(partition))
    except FlywheelError as error:
        return dg.SkipReason(str(error))
    if isinstance(step, dg.SkipReason):
        return step
    job, following, reason = step
    if _in_progress(context.instance, following):
        return dg.SkipReason(f"A run of {following} is in progress.")
    context.log.info(reason)
    # The evaluation's run is in the key: a run that was cancelled does not come back, a new evaluation starts it anew.
    key = f"{workspace.config.experiment}/{job}/{following}/{asset_event.run_id}"
    return dg.RunRequest(run_key=key, job_name=job, partition_key=following, tags={"flywheel/reason": reason[:200]})


def next_step(workspace: Workspace, iteration: int) -> tuple[str, str, str] | dg.SkipReason:
    """Job, partition and reason of what comes after the evaluation of `iteration`, or why nothing does.

    The sensor also sees evaluations that a backfill or the demo made, so it must not repeat what exists.
    Raises `FlywheelError` when the evaluations cannot be read.
    """
    if driver_at_work(workspace):
        return dg.SkipReason("`flywheel demo` is at work and goes on by itself.")
    if any(workspace.report_path("grpo-*").parent.glob("grpo-*.json")):
        return dg.SkipReason("Policy gradient has run; the flywheel is finished.")
    reports = history(workspace, iteration)
    fallen = collapse(reports, workspace.config.flywheel.max_collapse)
    if fallen is not None:
        return dg.SkipReason(fallen)
    decision = decide(workspace, iteration)
    if decision.stop:
        return "policy_gradient", iteration_name(best_iteration(reports, decision)), decision.reason
    following = iteration_name(iteration + 1)
    if workspace.report_path(following).exists():
        return dg.SkipReason(f"{following} has been evaluated already.")
    return "flywheel_iteration", following, decision.reason


def _in_progress(instance: dg.DagsterInstance, partition: str) -> bool:
    filters = dg.RunsFilter(
        statuses=[
            dg.DagsterRunStatus.QUEUED,
            dg.DagsterRunStatus.NOT_STARTED,
            dg.DagsterRunStatus.STARTING,
            dg.DagsterRunStatus.STARTED,
        ],
        tags={"dagster/partition": partition},
    )
    return instance.get_runs_count(filters) > 0


@dg.schedule(job=nightly_evaluation, cron_schedule="0 3 * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def nightly(
    context: dg.ScheduleEvaluationContext, workspace: dg.ResourceParam[Workspace]
) -> dg.RunRequest | dg.SkipReason:
    """At three, the best policy on the held-out split."""
    if best_report(workspace) is None:
        return dg.SkipReason("No policy has been evaluated yet.")
    night = context.scheduled_execution_time.strftime(NIGHTS.fmt)
    return dg.RunRequest(run_key=f"{workspace.config.experiment}/{night}", partition_key=night)
