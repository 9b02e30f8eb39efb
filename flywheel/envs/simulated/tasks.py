"""Tasks of the simulated desktop: made from a seed, written to files and read back.

A task file is OSWorld's own JSON, and OSWorld's own files are read too (as tasks of platform "ubuntu", which another
backend must run). What OSWorld has no word for (family, level, split) stands under the key `flywheel`.
"""

import hashlib
import json
import random
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flywheel.datasets import task_files
from flywheel.datasets.task_files import INFEASIBLE, LEVELS, OSWORLD_STEPS
from flywheel.envs.simulated import checkers, free, roomy
from flywheel.envs.simulated.desktop import CONFIG_TYPE
from flywheel.envs.simulated.draft import Draft, Goal, state_expected
from flywheel.envs.simulated.families import FAMILIES
from flywheel.envs.simulated.scene import Scene, refuse_desktop, scene_from_json, scene_to_json
from flywheel.envs.simulated.vocabulary import NAMES
from flywheel.errors import ConfigError, TaskError
from flywheel.seeds import derive_seed
from flywheel.types import Size, Split, Task

HELDOUT_SHARE = 0.3
"""Share of all possible tasks that is held out, by the hash of their content."""
_ATTEMPTS = 2000


def generate_tasks(
    *,
    split: Split,
    count: int,
    seed: int,
    screen: Size,
    layout: str = "roomy",
    families: Sequence[str] = (),
    levels: Sequence[int] = (),
) -> list[Task]:
    """`count` different tasks, round robin over families, then levels; the same arguments give the same tasks.

    A task's content decides its split, so the splits cannot overlap whatever their seeds. Empty `families` and
    `levels` take all. Raises `ConfigError` for an unknown family, level or layout, a screen under 96 x 96, or when the
    screen is too small for that many different tasks.
    """
    families, levels = tuple(families) or tuple(FAMILIES), tuple(levels) or LEVELS
    _refuse(families, levels, screen, layout)
    tasks: dict[str, Task] = {}
    for index in range(count):
        family = families[index % len(families)]
        level = levels[index // len(families) % len(levels)]
        for attempt in range(_ATTEMPTS):
            rng = random.Random(derive_seed(seed, "task", split, index, attempt))
            task = make_task(rng, family, level, screen, layout)
            if task is not None and task.split == split and task.id not in tasks:
                tasks[task.id] = task
                break
        else:
            raise ConfigError(f"There are not {count} different {split} tasks of family {family}; ask for fewer.")
    return list(tasks.values())


def make_task(rng: random.Random, family: str, level: int, screen: Size, layout: str) -> Task | None:
    """One task of one family and level; its split is up to its content. None when this draw found no room."""
    draft = Draft(rng, roomy.capacity(screen) if layout == "roomy" else len(NAMES), roomy.slots(screen))
    goal = FAMILIES[family](draft, level)
    if layout == "roomy":
        scene: Scene | None = roomy.place(draft.parts, screen, rng)
    else:
        scene = free.place(draft.parts, draft.needed, screen, rng)
    return None if scene is None else _task(family, level, scene, goal)


def overlap(a: Collection[Task], b: Collection[Task]) -> set[str]:
    """Ids of the tasks in `a` whose content is also in `b`; ids are read from content, not trusted."""
    there = {content_id(task.instruction, task.config, task.evaluator) for task in b}
    return {task.id for task in a if content_id(task.instruction, task.config, task.evaluator) in there}


def content_id(instruction: str, config: Any, evaluator: Any) -> str:
    """A uuid made of what the task is: its desktop and its goal."""
    content = json.dumps([instruction, list(config), evaluator], sort_keys=True, separators=(",", ":"))
    return str(uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16], version=5))


def split_of(task_id: str) -> Split:
    """The split that a content id belongs to."""
    return "heldout" if uuid.UUID(task_id).time_low < HELDOUT_SHARE * 2**32 else "train"


def _task(family: str, level: int, scene: Scene, goal: Goal) -> Task:
    config = ({"type": CONFIG_TYPE, "parameters": scene_to_json(scene)},)
    evaluator = _evaluator(scene, goal)
    task_id = content_id(goal.instruction, config, evaluator)
    return Task(
        id=task_id,
        instruction=goal.instruction,
        domain="simulated",
        config=config,
        evaluator=evaluator,
        family=family,
        level=level,
        split=split_of(task_id),
        infeasible=goal.missing is not None,
    )


def _evaluator(scene: Scene, goal: Goal) -> dict[str, Any]:
    if goal.missing is not None:
        rule = {"type": "rule", "rules": {"missing": goal.missing}}
        return {"func": INFEASIBLE, "expected": rule}
    rule = {"type": "rule", "rules": {"expected": state_expected(scene, goal)}}
    return {"func": "exact_match", "result": {"type": "simulated_state"}, "expected": rule}


def _refuse(families: Sequence[str], levels: Sequence[int], screen: Size, layout: str) -> None:
    for family in families:
        if family not in FAMILIES:
            raise ConfigError(f"There is no task family '{family}'; choose from {', '.join(FAMILIES)}.")
    for level in levels:
        if level not in LEVELS:
            raise ConfigError(f"There is no level {level}; levels are 1 to 4.")
    refuse_desktop(screen, layout)


# --- files ---------------------------------------------------------------------------------------------


def task_from_json(data: Any, domain: str = "") -> Task:
    """Read a task of this desktop or of OSWorld; raises `TaskError` with one sentence for whatever is malformed.

    Args:
        data: the parsed JSON of a task file.
        domain: taken when the file does not say; else its only application, or "multi_apps".
    """
    task = task_files.task_from_json(data, domain, steps=(*OSWORLD_STEPS, CONFIG_TYPE))
    if not _is_simulated(task):
        return task
    split = data.get("flywheel", {}).get("split") or split_of(content_id(task.instruction, task.config, task.evaluator))
    return replace(task, platform="simulated", split=split)


def load_task(path: Path | str) -> Task:
    """Read one task file. In OSWorld's folders (`examples/DOMAIN/ID.json`) the folder is the domain."""
    return task_files.load_task(path, task_from_json)


def load_tasks(path: Path | str) -> list[Task]:
    """Read one task a line; raises `TaskError` naming the line that is malformed or repeats an id."""
    return task_files.load_tasks(path, task_from_json)


def _is_simulated(task: Task) -> bool:
    """Whether its set-up steps are for the simulated desktop; checks them, if so. Raises `TaskError`."""
    simulated = [step for step in task.config if step["type"] == CONFIG_TYPE]
    if not simulated:
        return False
    if len(task.config) > 1:
        raise TaskError(f"Task {task.id} mixes a {CONFIG_TYPE} step with others; it must be the only one.")
    if not isinstance(simulated[0].get("parameters"), Mapping):
        raise TaskError(f"Task {task.id} has a {CONFIG_TYPE} step without parameters.")
    problem = checkers.problem_of(task.evaluator)
    if problem:
        raise TaskError(f"Task {task.id}: {problem}")
    scene_from_json(simulated[0]["parameters"])
    return True
