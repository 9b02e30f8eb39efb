"""Task files in OSWorld's JSON schema: one task a file, or one a line.

What OSWorld has no word for (domain, family, level, split) stands under the key `flywheel`. A task that was read keeps
everything that its file said, so nothing is lost on the way back. Standard library only: workers of real desktops run
it in a virtual environment of their own.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.errors import TaskError
from flywheel.types import Task

OSWORLD_STEPS = (
    "download", "upload_file", "change_wallpaper", "tidy_desktop", "open", "launch", "execute",
    "execute_with_verification", "command", "sleep", "act", "replay", "activate_window", "close_window", "proxy",
    "chrome_open_tabs", "chrome_close_tabs", "googledrive", "login", "update_browse_history",
)  # fmt: skip
"""Set-up steps that desktop-env 1.0.2 has a method for."""

INFEASIBLE = "infeasible"
"""The evaluator's `func` when the right answer is to say that the task cannot be done."""
LEVELS = (1, 2, 3, 4)
_JSON_NAMES: dict[type, str] = {str: "a string", Mapping: "an object"}

Reader = Callable[[Any, str], Task]
"""Parsed JSON and a domain for files that name none -> task."""


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
    if task.platform not in ("ubuntu", "simulated"):
        ours["platform"] = task.platform
    return data | {"flywheel": ours}


def task_from_json(data: Any, domain: str = "", steps: Collection[str] = OSWORLD_STEPS) -> Task:
    """Read a task; raises `TaskError` with one sentence for whatever is malformed.

    Args:
        data: the parsed JSON of a task file.
        domain: taken when the file does not say; else its only application, or "multi_apps".
        steps: names of set-up steps that may stand in its config.
    """
    if not isinstance(data, Mapping):
        raise TaskError(f"A task must be a JSON object, not {type(data).__name__}.")
    for key, kind in (("id", str), ("instruction", str), ("evaluator", Mapping)):
        if key not in data:
            raise TaskError(f"Task {data.get('id', 'without id')} has no '{key}'; add it.")
        if not isinstance(data[key], kind):
            found = type(data[key]).__name__
            raise TaskError(f"Task {data['id']} has '{key}' of type {found}; it must be {_JSON_NAMES[kind]}.")
    _check_steps(data, steps)
    ours = _read_ours(data)
    apps = data.get("related_apps") or ["unknown"]
    if not isinstance(apps, list | tuple):
        raise TaskError(f"Task {data['id']} has related_apps = {apps!r}; write a list of names.")
    return Task(
        id=data["id"],
        instruction=data["instruction"],
        domain=ours.get("domain") or domain or (str(apps[0]) if len(apps) == 1 else "multi_apps"),
        config=tuple(data.get("config", ())),
        evaluator=data["evaluator"],
        family=ours.get("family", ""),
        level=ours.get("level", 1),
        split=ours.get("split", "train"),
        infeasible=data["evaluator"].get("func") == INFEASIBLE,
        platform=ours.get("platform", "ubuntu"),
        raw=dict(data),
    )


def load_task(path: Path | str, read: Reader = task_from_json) -> Task:
    """Read one task file. In OSWorld's folders (`examples/DOMAIN/ID.json`) the folder is the domain."""
    path = Path(path)
    data = parse(read_text(path), str(path))
    is_osworld = isinstance(data, Mapping) and data.get("id") == path.stem
    try:
        return read(data, path.parent.name if is_osworld else "")
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error


def save_tasks(tasks: Sequence[Task], path: Path | str) -> None:
    """Write one task a line; the file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(task_to_json(task)) + "\n" for task in tasks))
    partial.replace(path)


def load_tasks(path: Path | str, read: Reader = task_from_json) -> list[Task]:
    """Read what `save_tasks` wrote; raises `TaskError` naming the line that is malformed or repeats an id."""
    tasks: dict[str, Task] = {}
    for number, line in enumerate(read_text(Path(path)).splitlines(), 1):
        where = f"{path} line {number}"
        try:
            task = read(parse(line, where), "")
        except TaskError as error:
            raise TaskError(f"{where}: {error}") from error
        if task.id in tasks:
            raise TaskError(f"{where} repeats task {task.id}; every id may stand once.")
        tasks[task.id] = task
    return list(tasks.values())


def read_text(path: Path) -> str:
    """Raises `TaskError` when it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read as a task file: {error}.") from error


def parse(text: str, where: str) -> Any:
    """JSON; raises `TaskError` naming `where`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where} is not JSON: {error.msg} at column {error.colno}.") from error


def _check_steps(data: Mapping[str, Any], known: Collection[str]) -> None:
    steps = data.get("config", [])
    if not isinstance(steps, list | tuple):
        raise TaskError(f"Task {data['id']} has a config that is not a list of set-up steps.")
    for i, step in enumerate(steps):
        kind = step.get("type") if isinstance(step, Mapping) else None
        if kind not in known:
            raise TaskError(f"Task {data['id']} has the unknown set-up step {kind!r} as number {i} of its config.")


def _read_ours(data: Mapping[str, Any]) -> Mapping[str, Any]:
    ours = data.get("flywheel", {})
    if not isinstance(ours, Mapping) or ours.get("split", "train") not in ("train", "heldout"):
        raise TaskError(f"Task {data['id']} has flywheel = {ours!r}; its split must be 'train' or 'heldout'.")
    for key in ("domain", "family", "platform"):
        if not isinstance(ours.get(key, ""), str):
            raise TaskError(f"Task {data['id']} has {key} = {ours[key]!r}; write a word.")
    if ours.get("level", 1) not in LEVELS:
        raise TaskError(f"Task {data['id']} has level {ours['level']!r}; levels are 1 to 4.")
    return ours
