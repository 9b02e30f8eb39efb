"""What the stage `evaluate` is asked. Light: assets and commands that ask import it."""

from dataclasses import asdict
from typing import Any

from flywheel.seeds import derive_seed
from flywheel.types import PolicyRef, Split
from flywheel.workspace import Workspace


def evaluation_args(
    workspace: Workspace,
    policy: PolicyRef,
    tasks: str,
    *,
    split: Split = "heldout",
    episodes: int | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Arguments of `flywheel.jobs.evaluate.run`.

    Args:
        tasks: the file of the split.
        episodes: how many; `eval.episodes` by default.
        seed: by default the same for every policy, so that reports can be compared task by task.
        name: of report and partition; by default those of the policy's own report, `<version>` and `eval-<version>`.
    """
    config = workspace.config
    return {
        "policy": asdict(policy),
        "tasks": tasks,
        "split": split,
        "episodes": config.eval.episodes if episodes is None else episodes,
        "seed": derive_seed(config.seed, "evaluate") if seed is None else seed,
        "partition": name or f"eval-{policy.version}",
        "report": str(workspace.report_path(name or policy.version)),
    }
