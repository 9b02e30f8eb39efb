"""The two splits that everything is trained and measured on. Light: it runs in whatever process asks for it."""

from collections import Counter
from typing import Any

from flywheel.datasets.task_files import save_tasks
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import TaskError
from flywheel.seeds import derive_seed
from flywheel.types import Size, Split
from flywheel.workspace import Workspace

SPLITS: tuple[Split, ...] = ("train", "heldout")


def build_tasks(workspace: Workspace) -> dict[str, Any]:
    """Generate both splits as the profile asks and write them. Raises `ConfigError` when it asks for the impossible.

    Returns: how many tasks each split has, and `by_family`.
    """
    config = workspace.config
    counts = {"train": config.tasks.train, "heldout": config.tasks.heldout}
    families: Counter[str] = Counter()
    for split in SPLITS:
        generated = generate_tasks(
            split=split,
            count=counts[split],
            seed=derive_seed(config.seed, "tasks", split),
            screen=Size(config.env.width, config.env.height),
            layout=config.env.layout,
            families=config.env.families,
            levels=config.env.levels,
        )
        save_tasks(generated, workspace.tasks_dir / f"{split}.jsonl")
        families.update(task.family for task in generated)
    return {**counts, "by_family": dict(families)}


def task_file(workspace: Workspace, split: Split) -> str:
    """Path of a split. Raises `TaskError` when it was not generated."""
    path = workspace.tasks_dir / f"{split}.jsonl"
    if not path.is_file():
        raise TaskError(f"There are no {split} tasks at {path}; make them with `flywheel tasks`.")
    return str(path)
