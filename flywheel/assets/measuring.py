"""Evaluation of one policy, shared by all assets that are evaluation reports."""

from dataclasses import asdict
from typing import Any

import dagster as dg

from flywheel.assets import show
from flywheel.jobs.tasks import task_file
from flywheel.resources.jobs import Jobs
from flywheel.seeds import derive_seed
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
    """Play the held-out split, publish it as `eval-<version>` (or `name`), write the report; metadata for the asset.

    The seed is the same for every policy, so that reports can be compared task by task.
    """
    config = workspace.config
    report = name or policy.version
    partition = name or f"eval-{policy.version}"
    args = {
        "policy": asdict(policy),
        "tasks": task_file(workspace, "heldout"),
        "split": "heldout",
        "episodes": config.eval.episodes,
        "seed": derive_seed(config.seed, "evaluate"),
        "partition": partition,
        "report": str(workspace.report_path(report)),
    }
    run = jobs.run(context, "evaluate", report, args)
    return {
        "policy": policy.version,
        **show.success(run.result),
        **show.films(store, config.experiment, run.result),
        **show.sql(partition),
        **show.stage(run),
    }
