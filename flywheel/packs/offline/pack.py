"""The offline task pack: OSWorld's JSON, nothing downloaded, each task with a scripted solution.

A task's id is a hash of its content, and its split follows from the id, so that the splits cannot overlap whatever the
seeds and counts they were made with. Under the key `solution` its file holds the steps that
`flywheel.rollout.agents.solutions` plays.
"""

import hashlib
import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.datasets.osworld import split_of
from flywheel.datasets.task_files import INFEASIBLE, LEVELS, task_from_json
from flywheel.errors import TaskError
from flywheel.packs.draft import end
from flywheel.packs.offline.families import FAMILIES
from flywheel.seeds import derive_seed
from flywheel.types import Split, Task

SEED, EACH = 0, {"train": 2, "heldout": 1}
"""The pack as it is measured: so many tasks of every family in each split."""
_ATTEMPTS = 500


def offline_pack() -> list[Task]:
    """The pack as it is measured, training tasks first."""
    return [task for split in ("train", "heldout") for task in pack_tasks(split, EACH[split] * len(FAMILIES))]


def pack_tasks(
    split: Split, count: int, seed: int = SEED, families: Sequence[str] = (), levels: Sequence[int] = ()
) -> list[Task]:
    """`count` different tasks, round robin over families; the same arguments give the same tasks.

    Args:
        families: names of `FAMILIES`, or of applications; empty takes all.
        levels: 1 to 4; empty takes all.

    Raises `TaskError` when there are no such families, or not so many different tasks.
    """
    chosen = [
        name
        for name, family in FAMILIES.items()
        if family.level in (levels or LEVELS) and (not families or {name, family.app}.intersection(families))
    ]
    if not chosen:
        raise TaskError(f"The offline pack has no family of {list(families)} at levels {list(levels or LEVELS)}.")
    tasks: dict[str, Task] = {}
    for index in range(count):
        name = chosen[index % len(chosen)]
        for attempt in range(_ATTEMPTS):
            task = make_task(name, random.Random(derive_seed(seed, "offline", split, name, index, attempt)))
            if task.split == split and task.id not in tasks:
                tasks[task.id] = task
                break
        else:
            raise TaskError(f"The family {name} has not so many different {split} tasks; ask for fewer than {count}.")
    return list(tasks.values())


def make_task(name: str, rng: random.Random) -> Task:
    """One task of a family; its split is up to its content."""
    family = FAMILIES[name]
    draft = family.make(rng)
    config = draft.config()
    content = json.dumps([draft.instruction, config, draft.evaluator], sort_keys=True)
    task_id = str(uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16], version=5))
    last = end(failure=draft.evaluator["func"] == INFEASIBLE)
    data: dict[str, Any] = {
        "id": task_id,
        "snapshot": family.app,
        "instruction": draft.instruction,
        "source": "flywheel offline pack",
        "config": config,
        "trajectory": "trajectories/",
        "related_apps": [family.app],
        "evaluator": draft.evaluator,
        "proxy": False,
        "fixed_ip": False,
        "possibility_of_env_change": "low",
        "solution": [*draft.solution, last],
        "flywheel": {
            "domain": family.app,
            "family": name,
            "level": family.level,
            "split": split_of(task_id),
        },
    }
    return task_from_json(data)


def write_pack(tasks: Sequence[Task], folder: Path) -> None:
    """One file a task, `folder/<application>/<id>.json`, as `flywheel tasks import` reads them."""
    for task in tasks:
        path = folder / task.domain / f"{task.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(task.raw, indent=2) + "\n")
