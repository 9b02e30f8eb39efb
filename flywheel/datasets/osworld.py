"""Tasks of others: OSWorld's tree, the cookbook's parquet, folders and lines of task files; and which can run here.

A file that holds no task, or a malformed one, does not end an import: it is listed with one sentence that names the
file and the key. Which split a task is in follows from its id, unless its file says.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flywheel.datasets.needs import Here, cache_name, judge, platform_of
from flywheel.datasets.task_files import load_task, parse, read_text, task_from_json
from flywheel.errors import TaskError
from flywheel.types import Split, Task

HELDOUT_SHARE = 0.3
"""Share of imported tasks that is held out, by the hash of their id."""
_COLUMNS = ("task_id", "domain", "instruction", "task_config")


@dataclass(frozen=True, slots=True)
class Entry:
    """One task of an import and the judgement on it; `task` is None where the file holds none."""

    id: str
    domain: str
    platform: str
    reason: str = ""
    cause: str = ""
    task: Task | None = None

    @property
    def runnable(self) -> bool:
        return not self.reason

    def to_json(self) -> dict[str, Any]:
        """`{id, domain, platform, runnable, reason}`."""
        names = ("id", "domain", "platform", "runnable", "reason")
        return {name: getattr(self, name) for name in names}


def survey(path: Path, here: Here) -> list[Entry]:
    """Every task of `path` with whether it can run `here`. Raises `TaskError` when there is nothing to read at all.

    Args:
        path: OSWorld's repository or its `examples`, any folder of task files, one of them, lines of them (`.jsonl`),
            or a parquet with the cookbook's columns `task_id, domain, instruction, task_config, platform`.
    """
    entries: list[Entry] = []
    seen: set[tuple[str, str]] = set()
    for where, task in read_tasks(path):
        if isinstance(task, TaskError):
            entries.append(Entry(_stem(where), "", "unknown", str(task), "malformed"))
        elif (task.id, task.platform) in seen:  # OSWorld's Windows tasks have the ids of their Ubuntu twins
            sentence = f"{where} repeats task {task.id}; every id may stand once."
            entries.append(Entry(task.id, task.domain, task.platform, sentence, "malformed"))
        else:
            seen.add((task.id, task.platform))
            entries.append(_judged(task, here, where))
    if not entries:
        raise TaskError(f"{path} holds no task files; name OSWorld's folder, a parquet or a folder of task files.")
    return entries


def runnable(entries: Sequence[Entry], split: Split) -> list[Task]:
    """The tasks of a split that can run."""
    return [entry.task for entry in entries if entry.runnable and entry.task and entry.task.split == split]


def read_tasks(path: Path) -> Iterator[tuple[str, Task | TaskError]]:
    """Where it stands and the task, or what is wrong with it. Raises `TaskError` when `path` cannot be read."""
    if not path.exists():
        raise TaskError(f"There is no {path}; name OSWorld's folder, a tasks parquet or a folder of task files.")
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            if not any(part.startswith(".") for part in file.relative_to(path).parts) and not _is_list(file):
                yield from _one(file)
    elif path.suffix == ".parquet":
        yield from _rows(path)
    elif path.suffix == ".jsonl":
        for number, line in enumerate(read_text(path).splitlines(), 1):
            yield _read(f"{path} line {number}", line)
    else:
        yield from _one(path)


def _one(path: Path) -> Iterator[tuple[str, Task | TaskError]]:
    try:
        yield str(path), _placed(load_task(path))
    except TaskError as error:
        yield str(path), error


def _read(where: str, text: str, **more: Any) -> tuple[str, Task | TaskError]:
    """A task from the text of its JSON; `more` goes over what it says."""
    try:
        data = parse(text, where)
        if isinstance(data, Mapping):
            data = {**data, **more}
        return where, _placed(task_from_json(data))
    except TaskError as error:
        return where, error if str(error).startswith(where) else TaskError(f"{where}: {error}")


def _rows(path: Path) -> Iterator[tuple[str, Task | TaskError]]:
    """The cookbook's tasks parquet: one configuration a row, as JSON text; some rows have none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TaskError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}.") from error
    lacking = [name for name in _COLUMNS if name not in table.column_names]
    if lacking:
        raise TaskError(f"{path} lacks the column {lacking[0]!r}; a tasks parquet has {', '.join(_COLUMNS)}.")
    for number, row in enumerate(table.to_pylist(), 1):
        where = f"{path} row {number} ({row['task_id']})"
        if not row["task_config"]:
            yield where, TaskError(f"{where} has no task_config, so nothing can set it up or judge it.")
            continue
        ours = {"domain": row["domain"]} if row["domain"] else {}
        if row.get("platform") == "windows":
            ours["platform"] = "windows"
        yield _read(where, row["task_config"], id=str(row["task_id"]), flywheel=ours)


def _placed(task: Task) -> Task:
    """With the platform and the split that its file leaves open."""
    ours = task.raw.get("flywheel") or {}
    platform = ours.get("platform") or platform_of(task.raw)
    return replace(task, platform=platform, split=ours.get("split") or split_of(task.id))


def split_of(task_id: str) -> Split:
    """By the hash of an id; the chunks of one task fall into one split."""
    digest = hashlib.sha256(cache_name(task_id).encode()).digest()
    return "heldout" if int.from_bytes(digest[:4], "big") < HELDOUT_SHARE * 2**32 else "train"


def _judged(task: Task, here: Here, where: str) -> Entry:
    try:
        refusal = judge(task, here)
    except TaskError as error:
        return Entry(task.id, task.domain, task.platform, f"{where}: {error}", "malformed")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {str(error) or 'no message'}"
        sentence = f"{where}: a step or getter of task {task.id} has the wrong form ({what})."
        return Entry(task.id, task.domain, task.platform, sentence, "malformed")
    if refusal is None:
        return Entry(task.id, task.domain, task.platform, task=task)
    return Entry(task.id, task.domain, task.platform, refusal.reason, refusal.cause, task)


def _is_list(path: Path) -> bool:
    """OSWorld's lists (`test_all.json`): domains and the ids of their tasks."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    lists = data.values() if isinstance(data, Mapping) else ()
    return bool(lists) and all(isinstance(each, list) and all(isinstance(x, str) for x in each) for each in lists)


def _stem(where: str) -> str:
    """What stands for the id of a task that has none: the name of its file, row or line."""
    return where.rsplit("/", 1)[-1].removesuffix(".json")
