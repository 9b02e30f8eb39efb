"""The flywheel: roll out, keep successes, train on them, measure; once around for each iteration."""

from dataclasses import asdict

import dagster as dg

from flywheel.assets import show
from flywheel.assets.alignment import BASE, demonstrations
from flywheel.assets.history import history
from flywheel.assets.measuring import evaluation_of
from flywheel.assets.partitions import IN_ORDER, ITERATIONS, iteration_of
from flywheel.assets.policies import incoming_policy, policy, report_policy, trained_policy
from flywheel.assets.tasks import tasks
from flywheel.errors import DataError
from flywheel.jobs.tasks import task_file
from flywheel.resources.jobs import Jobs
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace


@dg.asset(
    group_name="flywheel",
    partitions_def=ITERATIONS,
    backfill_policy=IN_ORDER,
    deps=[policy, tasks],
    kinds={"parquet"},
)
def trajectories(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    jobs: dg.ResourceParam[Jobs],
    store: dg.ResourceParam[TrajectoryStore],
) -> dg.MaterializeResult:
    """Episodes that the incoming policy played on training tasks, judged by each task's own checker."""
    partition, iteration = context.partition_key, iteration_of(context.partition_key)
    args = {
        "policy": asdict(incoming_policy(context.instance, partition)),
        "tasks": task_file(workspace, "train"),
        "partition": partition,
        "iteration": iteration,
        "seed": derive_seed(workspace.config.seed, "rollouts", iteration),
    }
    run = jobs.run(context, "rollouts", partition, args)
    metadata = {**show.success(run.result), **show.reward_terms(run.result), **show.teacher(run.result)}
    metadata |= {**show.sql(partition), **show.stage(run)}
    metadata |= show.films(store, workspace.config.experiment, run.result)
    version = dg.DataVersion(f"{partition}/{run.result['attempt']}")
    return dg.MaterializeResult(metadata=metadata, data_version=version)


@dg.asset(
    group_name="flywheel",
    partitions_def=ITERATIONS,
    backfill_policy=IN_ORDER,
    # With `flywheel.pool: all` the set also holds successes of earlier iterations. The edge stays one to one all the
    # same: with any other mapping Dagster does not backfill the four assets of an iteration in one run.
    deps=[trajectories, demonstrations],
    kinds={"huggingface"},
)
def sft_set(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.MaterializeResult:
    """The successes, filtered on task reward and mixed with the demonstrations, as a `datasets` dataset."""
    partition, iteration = context.partition_key, iteration_of(context.partition_key)
    mixed_in = workspace.demonstrations_dir if workspace.config.flywheel.demonstrations else None
    args = {
        "iteration": iteration,
        "out": str(workspace.set_dir(iteration)),
        "demonstrations": mixed_in and str(mixed_in),
        "seed": derive_seed(workspace.config.seed, "sft_set", iteration),
    }
    run = jobs.run(context, "sft_set", partition, args)
    metadata = show.numbers(run.result, "trajectories", "from_demonstrations", "turns", "tokens")
    metadata |= {name: run.result[name] for name in ("by_iteration", "by_family") if name in run.result}
    return dg.MaterializeResult(metadata={**metadata, **show.stage(run)})


@dg.asset(
    group_name="flywheel",
    partitions_def=ITERATIONS,
    backfill_policy=IN_ORDER,
    deps=[sft_set, policy],
    kinds={"pytorch"},
)
def checkpoint(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.MaterializeResult:
    """The policy trained on the iteration's set; reported as the policy of the next iteration."""
    partition, iteration = context.partition_key, iteration_of(context.partition_key)
    config = workspace.config
    init = incoming_policy(context.instance, partition)
    if config.flywheel.init == "base":
        init = trained_policy(workspace, BASE, "base_model")
    args = {
        "sets": [str(_training_set(workspace, iteration))],
        "init": asdict(init),
        "out": str(workspace.checkpoint_dir(partition)),
        "version": partition,
        "steps": config.flywheel.steps,
        "seed": derive_seed(config.seed, "sft", iteration),
    }
    run = jobs.run(context, "sft", partition, args)
    report_policy(context, PolicyRef(**run.result["policy"]), iteration + 1, run)
    return show.checkpoint(run)


def _training_set(workspace: Workspace, iteration: int) -> str:
    folder = workspace.set_dir(iteration)
    if not folder.is_dir():
        raise DataError(f"There is no training set at {folder}; materialise sft_set[{folder.name}] first.")
    return str(folder)


def _curve(workspace: Workspace, partition: str) -> dict[str, dg.MetadataValue]:
    return show.curve(history(workspace, iteration_of(partition)))


eval_report = evaluation_of(
    checkpoint,
    str,
    name="eval_report",
    description="Held-out success of the iteration's checkpoint, and the curve so far.",
    besides=_curve,
)
