"""Tasks: the two splits that everything is trained and measured on."""

import time
from collections import Counter

import dagster as dg

from flywheel.envs.simulated.tasks import generate_tasks, save_tasks
from flywheel.errors import TaskError
from flywheel.seeds import derive_seed
from flywheel.types import Size, Split
from flywheel.workspace import Workspace

SPLITS: tuple[Split, ...] = ("train", "heldout")


def task_file(workspace: Workspace, split: Split) -> str:
    """Path of a split. Raises `TaskError` when it was not generated."""
    path = workspace.tasks_dir / f"{split}.jsonl"
    if not path.is_file():
        raise TaskError(f"There are no {split} tasks at {path}; materialise tasks first.")
    return str(path)


@dg.asset(group_name="alignment", kinds={"python"})
def tasks(workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Training and held-out tasks in OSWorld's JSON schema; which split a task is in follows from its content."""
    begun = time.monotonic()
    config = workspace.config
    workspace.tasks_dir.mkdir(parents=True, exist_ok=True)
    families: Counter[str] = Counter()
    for split in SPLITS:
        generated = generate_tasks(
            split=split,
            count=config.tasks.train if split == "train" else config.tasks.heldout,
            seed=derive_seed(config.seed, "tasks", split),
            screen=Size(config.env.width, config.env.height),
            layout=config.env.layout,
            families=config.env.families,
            levels=config.env.levels,
        )
        save_tasks(generated, workspace.tasks_dir / f"{split}.jsonl")
        families.update(task.family for task in generated)
    metadata = {
        "train": config.tasks.train,
        "heldout": config.tasks.heldout,
        "by_family": dict(families),
        "folder": dg.MetadataValue.path(workspace.tasks_dir),
        "wall_seconds": time.monotonic() - begun,
    }
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(workspace.tasks_key))
