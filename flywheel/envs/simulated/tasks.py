"""Tasks of the simulated desktop: made from a seed, written to files and read back.

A task file is OSWorld's own JSON, and OSWorld's own files are read too (as tasks of platform "ubuntu", which another
backend must run). What OSWorld has no word for (family, level, split) stands under the key `flywheel`.
"""

import hashlib
import json
import random
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.envs.simulated import checkers, free, roomy
from flywheel.envs.simulated.desktop import CONFIG_TYPE
from flywheel.envs.simulated.draft import Draft, Goal, state_expected
from flywheel.envs.simulated.families import FAMILIES, LEVELS
from flywheel.envs.simulated.scene import LAYOUTS, MIN_SIDE, Scene, scene_from_json, scene_to_json
from flywheel.envs.simulated.vocabulary import NAMES
from flywheel.errors import ConfigError, TaskError
from flywheel.seeds import derive_seed
from flywheel.types import Size, Split, Task

HELDOUT_SHARE = 0.3
"""Share of all possible tasks that is held out, by the hash of their content."""
_ATTEMPTS = 2000

_JSON_NAMES: dict[type, str] = {str: "a string", Mapping: "an object"}

OSWORLD_STEPS = (
    "download", "upload_file", "change_wallpaper", "tidy_desktop", "open", "launch", "execute",
    "execute_with_verification", "command", "sleep", "act", "replay", "activate_window", "close_window", "proxy",
    "chrome_open_tabs", "chrome_close_tabs", "googledrive", "login", "update_browse_history",
)  # fmt: skip
"""Set-up steps that desktop-env 1.0.2 has a method for."""


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
        return {"func": checkers.INFEASIBLE, "expected": rule}
    rule = {"type": "rule", "rules": {"expected": state_expected(scene, goal)}}
    return {"func": "exact_match", "result": {"type": "simulated_state"}, "expected": rule}


def _refuse(families: Sequence[str], levels: Sequence[int], screen: Size, layout: str) -> None:
    for family in families:
        if family not in FAMILIES:
            raise ConfigError(f"There is no task family '{family}'; choose from {', '.join(FAMILIES)}.")
    for level in levels:
        if level not in LEVELS:
            raise ConfigError(f"There is no level {level}; levels are 1 to 4.")
    if min(screen) < MIN_SIDE:
        raise ConfigError(f"A screen of {screen[0]} x {screen[1]} is too small; take at least {MIN_SIDE} x {MIN_SIDE}.")
    if layout not in LAYOUTS:
        raise ConfigError(f"There is no layout '{layout}'; take {' or '.join(LAYOUTS)}.")


# --- files ---------------------------------------------------------------------------------------------


def task_to_json(task: Task) -> dict[str, Any]:
    """OSWorld's JSON. A task that was read from a file keeps everything that the file said."""
    data = {
        "id": task.id,
        "snapshot": task.domain,
        "instruction": task.instruction,
        "source": "generated",
        "config": list(task.config),
        "trajectory": "trajectories/",
        "related_apps": [task.domain],
        "evaluator": task.evaluator,
        "proxy": False,
        "fixed_ip": False,
        "possibility_of_env_change": "low",
        **task.raw,
    }
    ours = {"domain": task.domain, "family": task.family, "level": task.level, "split": task.split}
    return data | {"flywheel": ours}


def task_from_json(data: Any, domain: str = "") -> Task:
    """Read a task; raises `TaskError` with one sentence for whatever is malformed.

    Args:
        data: the parsed JSON of a task file, of this desktop or of OSWorld.
        domain: taken when the file does not say; else its only application, or "multi_apps".
    """
    if not isinstance(data, Mapping):
        raise TaskError(f"A task must be a JSON object, not {type(data).__name__}.")
    for key, kind in (("id", str), ("instruction", str), ("evaluator", Mapping)):
        if key not in data:
            raise TaskError(f"Task {data.get('id', 'without id')} has no '{key}'; add it.")
        if not isinstance(data[key], kind):
            found = type(data[key]).__name__
            raise TaskError(f"Task {data['id']} has '{key}' of type {found}; it must be {_JSON_NAMES[kind]}.")
    simulated = _read_config(data)
    ours = _read_ours(data)
    apps = data.get("related_apps") or ["unknown"]
    if not isinstance(apps, list | tuple):
        raise TaskError(f"Task {data['id']} has related_apps = {apps!r}; write a list of names.")
    config = tuple(data.get("config", ()))
    own_id = content_id(data["instruction"], config, data["evaluator"]) if simulated else ""
    return Task(
        id=data["id"],
        instruction=data["instruction"],
        domain=ours.get("domain") or domain or (str(apps[0]) if len(apps) == 1 else "multi_apps"),
        config=config,
        evaluator=data["evaluator"],
        family=ours.get("family", ""),
        level=ours.get("level", 1),
        split=ours.get("split") or (split_of(own_id) if simulated else "train"),
        infeasible=data["evaluator"].get("func") == checkers.INFEASIBLE,
        platform="simulated" if simulated else "ubuntu",
        raw=dict(data),
    )


def load_task(path: Path | str) -> Task:
    """Read one task file. In OSWorld's folders (`examples/DOMAIN/ID.json`) the folder is the domain."""
    path = Path(path)
    data = _parse(_read(path), str(path))
    is_osworld = isinstance(data, Mapping) and data.get("id") == path.stem
    try:
        return task_from_json(data, path.parent.name if is_osworld else "")
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error


def save_tasks(tasks: Sequence[Task], path: Path | str) -> None:
    """Write one task a line; the file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(task_to_json(task)) + "\n" for task in tasks))
    partial.replace(path)


def load_tasks(path: Path | str) -> list[Task]:
    """Read what `save_tasks` wrote; raises `TaskError` naming the line that is malformed or repeats an id."""
    tasks: dict[str, Task] = {}
    for number, line in enumerate(_read(Path(path)).splitlines(), 1):
        where = f"{path} line {number}"
        try:
            task = task_from_json(_parse(line, where))
        except TaskError as error:
            raise TaskError(f"{where}: {error}") from error
        if task.id in tasks:
            raise TaskError(f"{where} repeats task {task.id}; every id may stand once.")
        tasks[task.id] = task
    return list(tasks.values())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read as a task file: {error}.") from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where} is not JSON: {error.msg} at column {error.colno}.") from error


def _read_config(data: Mapping[str, Any]) -> bool:
    """Check the set-up steps; True when they are for the simulated desktop."""
    steps = data.get("config", [])
    if not isinstance(steps, list | tuple):
        raise TaskError(f"Task {data['id']} has a config that is not a list of set-up steps.")
    for i, step in enumerate(steps):
        kind = step.get("type") if isinstance(step, Mapping) else None
        if kind != CONFIG_TYPE and kind not in OSWORLD_STEPS:
            raise TaskError(f"Task {data['id']} has the unknown set-up step {kind!r} as number {i} of its config.")
    simulated = [step for step in steps if step["type"] == CONFIG_TYPE]
    if not simulated:
        return False
    if len(steps) > 1:
        raise TaskError(f"Task {data['id']} mixes a {CONFIG_TYPE} step with others; it must be the only one.")
    if not isinstance(simulated[0].get("parameters"), Mapping):
        raise TaskError(f"Task {data['id']} has a {CONFIG_TYPE} step without parameters.")
    problem = checkers.problem_of(data["evaluator"])
    if problem:
        raise TaskError(f"Task {data['id']}: {problem}")
    scene_from_json(simulated[0]["parameters"])
    return True


def _read_ours(data: Mapping[str, Any]) -> Mapping[str, Any]:
    ours = data.get("flywheel", {})
    if not isinstance(ours, Mapping) or ours.get("split", "train") not in ("train", "heldout"):
        raise TaskError(f"Task {data['id']} has flywheel = {ours!r}; its split must be 'train' or 'heldout'.")
    for key in ("domain", "family"):
        if not isinstance(ours.get(key, ""), str):
            raise TaskError(f"Task {data['id']} has {key} = {ours[key]!r}; write a word.")
    if ours.get("level", 1) not in LEVELS:
        raise TaskError(f"Task {data['id']} has level {ours['level']!r}; levels are 1 to 4.")
    return ours
