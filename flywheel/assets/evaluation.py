"""Nightly evaluation. An asset of its own: Dagster plots the highest value of a partition, so re-evaluations of an
iteration under its own key would only ever show the luckiest one."""

import dagster as dg

from flywheel.assets.grpo import grpo_checkpoint
from flywheel.assets.history import best_report
from flywheel.assets.iterations import checkpoint
from flywheel.assets.measuring import evaluate
from flywheel.assets.partitions import NIGHTS
from flywheel.assets.tasks import tasks
from flywheel.errors import PolicyError
from flywheel.resources.jobs import Jobs
from flywheel.store.store import TrajectoryStore
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace

BEST = "best"


class NightlyConfig(dg.Config):
    """What to evaluate tonight."""

    policy: str = BEST
    """A version of this experiment, or `best`: the one with the highest held-out success."""


@dg.asset(
    group_name="evaluation",
    partitions_def=NIGHTS,
    deps=[
        dg.AssetDep(checkpoint, partition_mapping=dg.AllPartitionMapping()),
        dg.AssetDep(grpo_checkpoint, partition_mapping=dg.AllPartitionMapping()),
        tasks,
    ],
    kinds={"python"},
)
def nightly_eval_report(
    context: dg.AssetExecutionContext,
    config: NightlyConfig,
    workspace: dg.ResourceParam[Workspace],
    jobs: dg.ResourceParam[Jobs],
    store: dg.ResourceParam[TrajectoryStore],
) -> dg.MaterializeResult:
    """Held-out success of the best policy, night by night."""
    chosen = best_policy(workspace) if config.policy == BEST else workspace.policy(config.policy)
    metadata = evaluate(context, workspace, jobs, store, chosen, name=f"nightly-{context.partition_key}")
    return dg.MaterializeResult(metadata=metadata)


def best_policy(workspace: Workspace) -> PolicyRef:
    """Raises `PolicyError` when nothing has been evaluated."""
    best = best_report(workspace)
    if best is None:
        raise PolicyError("No policy has been evaluated yet; materialise sft_eval_report or run `flywheel demo` first.")
    return workspace.policy(best.policy.version)
