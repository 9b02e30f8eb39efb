"""Policy gradient on the best of the flywheel. The partition is the iteration that seeded it."""

from dataclasses import asdict

import dagster as dg

from flywheel.assets import show
from flywheel.assets.iterations import checkpoint
from flywheel.assets.measuring import evaluation_of
from flywheel.assets.partitions import IN_ORDER, ITERATIONS, iteration_of
from flywheel.assets.policies import trained_policy
from flywheel.assets.tasks import tasks
from flywheel.errors import TrainingPausedError
from flywheel.jobs.tasks import task_file
from flywheel.resources.jobs import Jobs
from flywheel.seeds import derive_seed
from flywheel.workspace import Workspace


def grpo_version(partition: str) -> str:
    """Name of the checkpoint, and of its rollouts' partition in the store."""
    return f"grpo-{partition}"


@dg.asset(
    group_name="policy_gradient",
    partitions_def=ITERATIONS,
    backfill_policy=IN_ORDER,
    deps=[checkpoint, tasks],
    kinds={"pytorch"},
)
def grpo_checkpoint(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.MaterializeResult:
    """An iteration's checkpoint after policy gradient; its rollouts are in the store with their advantages.

    A run that a guard paused fails, and leaves an observation that says why.
    """
    partition = context.partition_key
    version = grpo_version(partition)
    args = {
        "init": asdict(trained_policy(workspace, partition, f"checkpoint[{partition}]")),
        "tasks": task_file(workspace, "train"),
        "out": str(workspace.checkpoint_dir(version)),
        "version": version,
        "partition": version,
        "iteration": iteration_of(partition),
        "seed": derive_seed(workspace.config.seed, "grpo", iteration_of(partition)),
    }
    try:
        run = jobs.run(context, "grpo", version, args)
    except TrainingPausedError as paused:
        context.log_event(dg.AssetObservation(context.asset_key, partition=partition, metadata={"paused": str(paused)}))
        raise
    return show.checkpoint(run)


grpo_eval_report = evaluation_of(
    grpo_checkpoint, grpo_version, name="grpo_eval_report", description="Held-out success after policy gradient."
)
