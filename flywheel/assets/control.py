"""The control: what the same number of optimiser steps makes of the demonstrations alone.

It answers whether the flywheel's own successes taught anything, or whether more training would have done. The
partition is the iteration whose number of steps it matches.
"""

from dataclasses import asdict

import dagster as dg

from flywheel.assets import show
from flywheel.assets.alignment import BASE, demonstrations, sft_checkpoint
from flywheel.assets.history import SFT
from flywheel.assets.measuring import evaluation_of
from flywheel.assets.partitions import IN_ORDER, ITERATIONS, iteration_of
from flywheel.assets.policies import trained_policy
from flywheel.resources.jobs import Jobs
from flywheel.seeds import derive_seed
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace


def control_version(partition: str) -> str:
    """Name of the control's checkpoint."""
    return f"control-{partition}"


@dg.asset(
    group_name="control",
    partitions_def=ITERATIONS,
    backfill_policy=IN_ORDER,
    deps=[sft_checkpoint, demonstrations],
    kinds={"pytorch"},
)
def control_checkpoint(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.MaterializeResult:
    """As many steps as the iteration's checkpoint has behind it, on the demonstrations alone."""
    version, iteration = control_version(context.partition_key), iteration_of(context.partition_key)
    init, steps = _start(workspace, iteration)
    args = {
        "sets": [str(workspace.demonstrations_dir)],
        "init": asdict(init),
        "out": str(workspace.checkpoint_dir(version)),
        "version": version,
        "steps": steps,
        "seed": derive_seed(workspace.config.seed, "control", iteration),
    }
    return show.checkpoint(jobs.run(context, "sft", version, args))


def _start(workspace: Workspace, iteration: int) -> tuple[PolicyRef, int]:
    """Where training starts, and the optimiser steps from there to `checkpoint[iteration]`."""
    knobs = workspace.config.flywheel
    if knobs.init == "base":
        return trained_policy(workspace, BASE, "base_model"), knobs.steps
    return trained_policy(workspace, SFT, "sft_checkpoint"), knobs.steps * iteration


control_eval_report = evaluation_of(
    control_checkpoint, control_version, name="control_eval_report", description="Held-out success of the control."
)
