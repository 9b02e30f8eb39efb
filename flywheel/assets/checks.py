"""What must hold before anything downstream starts. All of them block."""

from dataclasses import asdict

import dagster as dg

from flywheel.assets.alignment import sft_checkpoint
from flywheel.assets.grpo import grpo_checkpoint, grpo_eval_report, grpo_version
from flywheel.assets.history import SFT, collapse, history, read_report
from flywheel.assets.intact import latest
from flywheel.assets.iterations import checkpoint, eval_report, trajectories
from flywheel.assets.partitions import iteration_of
from flywheel.assets.tasks import tasks
from flywheel.envs.simulated.tasks import load_tasks, overlap
from flywheel.errors import DataError, PolicyError
from flywheel.jobs.base import RunFolder
from flywheel.jobs.tasks import task_file
from flywheel.resources.jobs import Jobs
from flywheel.workspace import Workspace, read_policy


@dg.asset_check(asset=tasks, blocking=True)
def splits_do_not_overlap(workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
    """No held-out task's content is among the training tasks."""
    shared = overlap(load_tasks(task_file(workspace, "heldout")), load_tasks(task_file(workspace, "train")))
    return dg.AssetCheckResult(
        passed=not shared, metadata={"shared": len(shared), "examples": ", ".join(sorted(shared)[:5])}
    )


@dg.asset_check(asset=trajectories, blocking=True)
def enough_successes(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """There is something to train on: at least `flywheel.min_successes` solved episodes, a teacher's included."""
    result = RunFolder(workspace.run_dir("rollouts", _partition(context, trajectories.key))).read_result() or {}
    taught = result.get("teacher") or {}
    solved = int(result.get("solved", 0)) + int(taught.get("solved", 0))
    wanted = workspace.config.flywheel.min_successes
    sentence = f"{solved} successes; at least {wanted} are needed (flywheel.min_successes)."
    return dg.AssetCheckResult(passed=solved >= wanted, description=sentence, metadata={"solved": solved})


@dg.asset_check(asset=sft_checkpoint, blocking=True)
def sft_checkpoint_loads(workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]) -> dg.AssetCheckResult:
    """The files that were written load again, with the recorded hash."""
    return _loads(workspace, jobs, SFT)


@dg.asset_check(asset=checkpoint, blocking=True)
def checkpoint_loads(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.AssetCheckResult:
    """The files that were written load again, with the recorded hash."""
    return _loads(workspace, jobs, _partition(context, checkpoint.key))


@dg.asset_check(asset=grpo_checkpoint, blocking=True)
def grpo_checkpoint_loads(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.AssetCheckResult:
    """The files that were written load again, with the recorded hash."""
    return _loads(workspace, jobs, grpo_version(_partition(context, grpo_checkpoint.key)))


def _partition(context: dg.AssetCheckExecutionContext, asset: dg.AssetKey) -> str:
    """The run's partition; for a check that is run alone, which Dagster does without one, the latest that was made."""
    if context.has_partition_key:
        return context.partition_key
    record = latest(context.instance, asset, None)
    if record is None or record.partition_key is None:
        raise DataError(f"There is nothing to check yet; materialise {asset.to_user_string()} first.")
    return record.partition_key


def _loads(workspace: Workspace, jobs: Jobs, version: str) -> dg.AssetCheckResult:
    """In a process of its own, like every use of a checkpoint; a refusal is the check's answer, a crash is an error."""
    try:
        policy = read_policy(workspace.checkpoint_dir(version))
        result = jobs.check("verify", version, {"policy": asdict(policy)})
    except PolicyError as error:
        return dg.AssetCheckResult(passed=False, description=str(error))
    return dg.AssetCheckResult(passed=True, metadata={"parameters": result["parameters"]})


@dg.asset_check(asset=eval_report, blocking=True)
def success_has_not_collapsed(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Success is not far below the best so far; the plateau sensor asks the same before it goes on."""
    reports = history(workspace, iteration_of(_partition(context, eval_report.key)))
    fallen = collapse(reports, workspace.config.flywheel.max_collapse)
    return dg.AssetCheckResult(passed=fallen is None, description=fallen)


@dg.asset_check(asset=grpo_eval_report, blocking=True)
def policy_gradient_has_not_collapsed(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Policy gradient did not ruin the checkpoint that it started from."""
    partition = _partition(context, grpo_eval_report.key)
    reports = [read_report(workspace, version) for version in (partition, grpo_version(partition))]
    fallen = collapse(reports, workspace.config.flywheel.max_collapse)
    return dg.AssetCheckResult(passed=fallen is None, description=fallen)
