"""Task files: OSWorld's schema both ways, and one sentence for whatever is malformed."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flywheel.datasets.task_files import save_tasks, task_to_json
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.oracle import plan
from flywheel.envs.simulated.tasks import generate_tasks, load_task, load_tasks, task_from_json
from flywheel.errors import SetupError, TaskError
from flywheel.types import Task
from tests.envs.support import SCREEN

SAMPLE = Path(__file__).parent / "data" / "osworld_sample.json"
OSWORLD = Path(__file__).parents[2].parent / "shared" / "osworld" / "examples"
SCHEMA = {
    "id", "snapshot", "instruction", "source", "config", "trajectory", "related_apps", "evaluator", "proxy", "fixed_ip",
    "possibility_of_env_change",
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return generate_tasks(split="heldout", count=26, seed=2, screen=SCREEN)


def test_a_file_alone_replays(tasks: list[Task], tmp_path: Path) -> None:
    for task in tasks:
        path = tmp_path / f"{task.id}.json"
        path.write_text(json.dumps(task_to_json(task)))
        loaded = load_task(path)
        assert set(task_to_json(task)) == SCHEMA | {"flywheel"}
        assert (loaded.id, loaded.family, loaded.level, loaded.split) == (task.id, task.family, task.level, task.split)
        assert (loaded.domain, loaded.platform, loaded.infeasible) == ("simulated", "simulated", task.infeasible)
        assert task_to_json(loaded) == task_to_json(task)
        desktop = SimulatedDesktop()
        assert plan(desktop, loaded) == plan(SimulatedDesktop(), task)
        assert desktop.evaluate() == 1.0


def test_lines_of_tasks_come_back(tasks: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "made" / "tasks.jsonl"
    save_tasks(tasks, path)
    assert [task_to_json(task) for task in load_tasks(path)] == [task_to_json(task) for task in tasks]
    assert [file.name for file in path.parent.iterdir()] == ["tasks.jsonl"]


def test_without_our_own_key_the_content_tells_the_split(tasks: list[Task]) -> None:
    data = task_to_json(tasks[0])
    del data["flywheel"]
    assert task_from_json(data).split == "heldout"


def test_osworld_files_are_read() -> None:
    files = sorted(OSWORLD.glob("*/*.json")) or [SAMPLE]
    loaded = [load_task(path) for path in files]
    assert {task.platform for task in loaded} == {"ubuntu"}
    for path, task in zip(files, loaded, strict=True):
        assert task.raw == json.loads(path.read_text())
        assert {key: task_to_json(task)[key] for key in task.raw} == task.raw
    if files != [SAMPLE]:
        assert len(files) == 369
        assert sum(task.infeasible for task in loaded) == 29
        assert {path.parent.name for path in files} == {task.domain for task in loaded}


def test_an_osworld_task_names_the_backend_that_it_needs() -> None:
    task = load_task(SAMPLE)
    assert (task.domain, task.platform) == ("os", "ubuntu")
    with pytest.raises(SetupError, match=r"platform 'ubuntu'.*real ubuntu desktops"):
        SimulatedDesktop().reset(task)


def _widget(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["config"][0]["parameters"]["widgets"][0].update(changes)


def _parameters(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["config"][0]["parameters"].update(changes)


def _top(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(changes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.pop("instruction"), "has no 'instruction'"),
        (lambda data: data.pop("id"), "Task without id has no 'id'"),
        (_top(instruction=7), "'instruction' of type int; it must be a string"),
        (_top(config={}), "config that is not a list"),
        (_top(config=["launch"]), "unknown set-up step None as number 0"),
        (_top(config=[{"type": "teleport", "parameters": {}}]), "unknown set-up step 'teleport'"),
        (_top(config=[{"type": "simulated_desktop"}]), "without parameters"),
        (lambda data: data["config"].append({"type": "sleep", "parameters": {}}), "must be the only one"),
        (_top(evaluator={}), "The evaluator has no 'func'"),
        (_top(evaluator={"func": "guess"}), "has func 'guess'; the simulated desktop knows exact_match"),
        (_top(evaluator={"func": ["exact_match"]}), "lists of the same length"),
        (lambda data: data["evaluator"].update(result={"type": "vm_file"}), "its type must be one of simulated_state"),
        (lambda data: data["evaluator"].update(expected={}), "expected must be"),
        (lambda data: data["evaluator"].update(conj="xor"), "has conj 'xor'"),
        (_top(flywheel={"split": "test"}), "split must be 'train' or 'heldout'"),
        (_top(flywheel={"level": 9}), "level 9"),
        (_top(flywheel={"family": 3}), "family = 3; write a word"),
        (_top(related_apps="os"), "related_apps = 'os'"),
        (_parameters(screen=[160, 20]), r"screen is \[160, 20\]"),
        (_parameters(screen="big"), "screen is 'big'"),
        (_parameters(layout="dense"), "layout 'dense'"),
        (_parameters(widgets={}), "'widgets' is not a list"),
        (_parameters(windows=[{"title": 3}]), "Window 0 of the simulated desktop needs a title"),
        (lambda data: data["config"][0]["parameters"].pop("screen"), "has no 'screen'"),
        (_widget(kind="knob"), "Widget 0 has kind 'knob'; choose from button"),
        (_widget(caption=None), "Widget 0 of the simulated desktop needs a kind and a caption"),
        (_widget(box=[150, 0, 32, 32]), "not inside the 160 x 128 screen"),
        (_widget(box=[0, 0, 32]), r"has box \[0, 0, 32\]; write"),
        (_widget(box=[0, 0, 0, 5]), "empty or not inside"),
        (_widget(box=None), "has box None"),
        (_widget(parent=99), "has parent 99, which does not exist"),
        (_widget(parent="menu"), "has parent 'menu'; write the number"),
        (_widget(kind="item"), "has parent none; it needs menu or icon"),
        (_widget(kind="field", text=3), "has text = 3; only a field has that, and it is a str"),
        (_widget(checked="yes"), "checked = 'yes'; only a check has that, and it is a bool"),
        (_widget(kind="button", text="red"), "has text = 'red'; only a field"),
        (_widget(box=[0, 0, 40, 32]), "a cell is 32 x 32"),
        (_parameters(screen=[10_000_000, 128]), "from 96 to 7680"),
        (_parameters(windows={}), "'windows' is not a list"),
        (
            _parameters(
                widgets=[{"kind": kind, "caption": "Name", "box": [0, 0, 32, 32]} for kind in ("field", "check")]
            ),
            "Two fields or check boxes are called 'Name'",
        ),
        (_widget(kind="list"), "a list needs at least one box"),
    ],
)
def test_a_malformed_task_is_one_sentence(
    tasks: list[Task], tmp_path: Path, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = copy.deepcopy(task_to_json(tasks[0]))
    spoil(data)
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps(data))
    with pytest.raises(TaskError, match=message) as caught:
        load_task(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tasks(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    with pytest.raises(TaskError, match="cannot be read"):
        load_task(path)
    path.write_text("{'id': 1}")
    with pytest.raises(TaskError, match=r"is not JSON: .* at column 2"):
        load_task(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="cannot be read"):
        load_task(path)
    path.write_text("[]")
    with pytest.raises(TaskError, match="must be a JSON object, not list"):
        load_task(path)


def test_a_bad_line_is_named(tasks: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    line = json.dumps(task_to_json(tasks[0]))
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(TaskError, match=f"line 2 repeats task {tasks[0].id}"):
        load_tasks(path)
    path.write_text(f"{line}\n{line[:50]}\n")
    with pytest.raises(TaskError, match="line 2 is not JSON"):
        load_tasks(path)
    path.write_text("{}\n")
    with pytest.raises(TaskError, match="line 1: Task without id has no 'id'"):
        load_tasks(path)
