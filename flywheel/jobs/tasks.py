"""The two splits that everything is trained and measured on. Light: it runs in whatever process asks for it.

Importers and packs are imported where they are used: every command and every run of Dagster imports this module.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.config import Config
from flywheel.datasets.task_files import save_tasks
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import TaskError
from flywheel.seeds import derive_seed
from flywheel.types import Size, Split, Task
from flywheel.workspace import Workspace

if TYPE_CHECKING:
    from flywheel.datasets.needs import Here
    from flywheel.datasets.osworld import Entry

SPLITS: tuple[Split, ...] = ("train", "heldout")
OFFLINE = "offline"
"""`tasks.source` of the pack of real applications that flywheel brings."""


def build_tasks(workspace: Workspace) -> dict[str, Any]:
    """Generate or import both splits as the profile asks and write them.

    Returns: how many tasks each split has, and `by_family`. Raises `ConfigError` when the profile asks for the
    impossible, `TaskError` when no task of `tasks.source` can run on this machine.
    """
    config = workspace.config
    if config.tasks.source not in ("", OFFLINE):
        from flywheel.datasets.osworld import survey

        return write_imported(workspace, survey(Path(config.tasks.source), this_machine()))
    counts = {"train": config.tasks.train, "heldout": config.tasks.heldout}
    families: Counter[str] = Counter()
    for split in SPLITS:
        seed = derive_seed(config.seed, "tasks", split)
        generated = generate(config, split, counts[split], seed, config.env.families, config.env.levels)
        save_tasks(generated, workspace.tasks_dir / f"{split}.jsonl")
        families.update(task.family for task in generated)
    return {**counts, "by_family": dict(families)}


def generate(
    config: Config, split: Split, count: int, seed: int, families: Sequence[str], levels: Sequence[int]
) -> list[Task]:
    """Tasks of the simulated desktop, or of the pack, by `tasks.source`; the same for the same arguments.

    Raises `ConfigError` or `TaskError` when there are not so many different ones.
    """
    if config.tasks.source == OFFLINE:
        from flywheel.packs.offline.pack import pack_tasks

        return pack_tasks(split, count, seed, families, levels)
    return generate_tasks(
        split=split,
        count=count,
        seed=seed,
        screen=Size(config.env.width, config.env.height),
        layout=config.env.layout,
        families=families,
        levels=levels,
    )


def write_imported(workspace: Workspace, entries: "Sequence[Entry]") -> dict[str, Any]:
    """Write those imported tasks that can run here, at most as many as the profile asks. Returns as `build_tasks`."""
    from flywheel.datasets.osworld import runnable

    counts = {"train": workspace.config.tasks.train, "heldout": workspace.config.tasks.heldout}
    kept = {split: runnable(entries, split)[: counts[split]] for split in SPLITS}
    if not any(kept.values()):
        why, times = Counter(entry.reason for entry in entries).most_common(1)[0]
        raise TaskError(
            f"None of the {len(entries)} tasks of {workspace.config.tasks.source} can run on this machine "
            f"({times} for one reason: {why.rstrip('.')}); `flywheel tasks import PATH --json OUT` lists why."
        )
    for split in SPLITS:
        save_tasks(kept[split], workspace.tasks_dir / f"{split}.jsonl")
    families = Counter(task.family or task.domain for split in SPLITS for task in kept[split])
    return {**{split: len(kept[split]) for split in SPLITS}, "by_family": dict(families)}


def this_machine() -> "Here":
    """What sandboxed desktops on this machine offer to imported tasks: its programs and its offline cache."""
    from flywheel.datasets.needs import PROBED, Here
    from flywheel.envs.server.machines.xvfb.apps import installed_apps
    from flywheel.envs.server.places import cache_root

    programs = frozenset(name for name in PROBED if shutil.which(name))
    return Here(programs, cache_root(), offers=installed_apps())


def task_file(workspace: Workspace, split: Split) -> str:
    """Path of a split. Raises `TaskError` when it was not generated."""
    path = workspace.tasks_dir / f"{split}.jsonl"
    if not path.is_file():
        raise TaskError(f"There are no {split} tasks at {path}; make them with `flywheel tasks`.")
    return str(path)
