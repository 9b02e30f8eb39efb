"""From the hub (or from nothing) to a policy that is worth rolling out."""

from dataclasses import asdict

import dagster as dg

from flywheel.assets import show
from flywheel.assets.history import SFT, history
from flywheel.assets.measuring import evaluate
from flywheel.assets.policies import report_policy, trained_policy
from flywheel.assets.tasks import tasks
from flywheel.jobs.tasks import task_file
from flywheel.resources.jobs import Jobs
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace

BASE = "base"
"""Version of the policy before any training on trajectories."""


@dg.asset(group_name="alignment", kinds={"pytorch"})
def base_model(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.MaterializeResult:
    """The vision-language model that everything starts from: a hub model, or a tiny one built on the spot."""
    run = jobs.run(context, "base_model", BASE, {"out": str(workspace.checkpoint_dir(BASE))})
    measured = run.result.get("metrics", {})
    metadata = {**show.numbers(measured, *measured), **show.stage(run)}
    return dg.MaterializeResult(
        metadata=metadata, data_version=dg.DataVersion(run.result["policy"]["fingerprint"] or BASE)
    )


@dg.asset(group_name="alignment", deps=[tasks], kinds={"huggingface"})
def demonstrations(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.MaterializeResult:
    """Scripted solutions of some training tasks, as a `datasets` dataset with their screenshots."""
    args = {
        "tasks": task_file(workspace, "train"),
        "out": str(workspace.demonstrations_dir),
        "seed": derive_seed(workspace.config.seed, "demonstrations"),
    }
    run = jobs.run(context, "demonstrations", workspace.tasks_key, args)
    return dg.MaterializeResult(metadata={**show.numbers(run.result, *run.result), **show.stage(run)})


@dg.asset(group_name="alignment", deps=[base_model, demonstrations], kinds={"pytorch"})
def sft_checkpoint(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], jobs: dg.ResourceParam[Jobs]
) -> dg.MaterializeResult:
    """The base model trained on the demonstrations; reported as the policy of the first iteration."""
    config = workspace.config
    args = {
        "sets": [str(workspace.demonstrations_dir)],
        "init": asdict(trained_policy(workspace, BASE, "base_model")),
        "out": str(workspace.checkpoint_dir(SFT)),
        "version": SFT,
        "steps": config.sft.steps,
        "seed": derive_seed(config.seed, "sft", 0),
    }
    run = jobs.run(context, "sft", SFT, args)
    trained = PolicyRef(**run.result["policy"])
    report_policy(context, trained, 1, run)
    return show.checkpoint(run)


@dg.asset(group_name="alignment", deps=[sft_checkpoint, tasks], kinds={"python"})
def sft_eval_report(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    jobs: dg.ResourceParam[Jobs],
    store: dg.ResourceParam[TrajectoryStore],
) -> dg.MaterializeResult:
    """Held-out success of the aligned policy: iteration 0 of the curve."""
    trained = trained_policy(workspace, SFT, "sft_checkpoint")
    metadata = evaluate(context, workspace, jobs, store, trained)
    return dg.MaterializeResult(metadata=metadata | show.curve(history(workspace, 0)))
