"""Evaluation of one policy, shared by all assets that are evaluation reports."""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from flywheel.assets import show
from flywheel.assets.partitions import IN_ORDER, ITERATIONS
from flywheel.assets.policies import trained_policy
from flywheel.assets.tasks import tasks
from flywheel.jobs.evaluation_args import evaluation_args
from flywheel.jobs.tasks import task_file
from flywheel.resources.jobs import Jobs
from flywheel.store.store import TrajectoryStore
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace


def evaluate(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    jobs: Jobs,
    store: TrajectoryStore,
    policy: PolicyRef,
    name: str | None = None,
) -> dict[str, Any]:
    """Play the held-out split, publish it as `eval-<version>` (or `name`), write the report; metadata for the asset."""
    args = evaluation_args(workspace, policy, task_file(workspace, "heldout"), name=name)
    run = jobs.run(context, "evaluate", name or policy.version, args)
    return {
        "policy": policy.version,
        **show.success(run.result),
        **show.films(store, workspace.config.experiment, run.result),
        **show.sql(args["partition"]),
        **show.stage(run),
    }


def evaluation_of(
    trained: dg.AssetsDefinition,
    version: Callable[[str], str],
    *,
    name: str,
    description: str,
    besides: Callable[[Workspace, str], Mapping[str, Any]] = lambda *_: {},
) -> dg.AssetsDefinition:
    """The evaluation report, by iteration, of an asset that trains a policy.

    Args:
        trained: partitioned by iteration; the report joins its group.
        version: name of the policy that a partition of `trained` makes.
        besides: what else the asset shows of a partition, once its report is written.
    """

    @dg.asset(
        name=name,
        description=description,
        group_name=trained.group_names_by_key[trained.key],
        partitions_def=ITERATIONS,
        backfill_policy=IN_ORDER,
        deps=[trained, tasks],
        kinds={"python"},
    )
    def report(
        context: dg.AssetExecutionContext,
        workspace: dg.ResourceParam[Workspace],
        jobs: dg.ResourceParam[Jobs],
        store: dg.ResourceParam[TrajectoryStore],
    ) -> dg.MaterializeResult:
        partition = context.partition_key
        made_by = f"{trained.key.to_user_string()}[{partition}]"
        policy = trained_policy(workspace, version(partition), made_by)
        metadata = evaluate(context, workspace, jobs, store, policy)
        return dg.MaterializeResult(metadata={**metadata, **besides(workspace, partition)})

    return report
