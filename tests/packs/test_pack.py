"""The offline pack without a desktop: whole, varied, readable by OSWorld and by the importer, split cleanly."""

import json
from collections import Counter
from pathlib import Path

import pytest

from flywheel.actions.registry import action_space
from flywheel.datasets.needs import APPS, PROBED, Here, getters, judge
from flywheel.datasets.osworld import split_of, survey
from flywheel.datasets.osworld_names import GETTERS, METRICS
from flywheel.datasets.task_files import OSWORLD_STEPS, load_tasks, save_tasks, task_from_json
from flywheel.envs.wire import action_from_json
from flywheel.errors import TaskError
from flywheel.packs.__main__ import main
from flywheel.packs.offline.families import FAMILIES
from flywheel.packs.offline.pack import offline_pack, pack_tasks
from flywheel.types import Done, Size, Task

PACK = offline_pack()
SCREENS = (Size(1280, 720), Size(640, 400))


def full(cache: Path) -> Here:
    return Here(PROBED, cache)


def test_there_are_enough_tasks_over_enough_applications_and_levels() -> None:
    assert len(PACK) >= 60
    assert len({task.domain for task in PACK}) >= 6
    assert {task.level for task in PACK} == {1, 2, 3, 4}
    assert {task.domain for task in PACK} <= APPS.keys()
    assert Counter(task.infeasible for task in PACK)[True] >= 6
    assert {task.family for task in PACK} == set(FAMILIES)


def test_ids_are_unique_and_say_the_split() -> None:
    assert len({task.id for task in PACK}) == len(PACK)
    assert all(task.split == split_of(task.id) for task in PACK)
    for split in ("train", "heldout"):
        assert {task.family for task in PACK if task.split == split} == set(FAMILIES)


def test_splits_do_not_overlap_in_content_whatever_the_seeds() -> None:
    train, heldout = pack_tasks("train", 90, seed=1), pack_tasks("heldout", 90, seed=2)
    assert not {task.id for task in train} & {task.id for task in heldout}
    contents = [{json.dumps([t.instruction, t.config, t.evaluator]) for t in tasks} for tasks in (train, heldout)]
    assert not contents[0] & contents[1]


def test_the_same_arguments_give_the_same_tasks_and_others_give_others() -> None:
    assert pack_tasks("train", 12, seed=3) == pack_tasks("train", 12, seed=3)
    assert pack_tasks("train", 12, seed=3) != pack_tasks("train", 12, seed=4)
    assert pack_tasks("train", 12, seed=3)[:5] == pack_tasks("train", 5, seed=3)


def test_families_and_levels_can_be_chosen() -> None:
    assert {task.level for task in pack_tasks("train", 10, levels=(1, 4))} == {1, 4}
    assert {task.domain for task in pack_tasks("train", 10, families=("terminal",))} == {"terminal"}
    chosen = ("gimp/mirror", "text_editor")
    assert {task.domain for task in pack_tasks("heldout", 10, families=chosen)} == {"gimp", "text_editor"}
    assert {task.family for task in pack_tasks("heldout", 4, families=chosen[:1])} == {"gimp/mirror"}


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(TaskError, match="no family of \\['paint'\\] at levels \\[1, 2, 3, 4\\]"):
        pack_tasks("train", 1, families=("paint",))
    with pytest.raises(TaskError, match="terminal/make_folder has not so many different heldout tasks"):
        pack_tasks("heldout", 500, families=("terminal/make_folder",))


@pytest.mark.parametrize("task", PACK, ids=lambda task: f"{task.family}-{task.id[:4]}")
def test_osworld_can_read_it(task: Task, tmp_path: Path) -> None:
    raw = json.loads(json.dumps(task.raw))
    assert task_from_json(raw) == task
    wanted = {"id", "snapshot", "instruction", "source", "config", "trajectory", "related_apps", "evaluator", "proxy"}
    assert wanted <= raw.keys()
    assert all(step["type"] in OSWORLD_STEPS for step in raw["config"])
    func = task.evaluator["func"]
    assert set(func if isinstance(func, list) else [func]) <= METRICS
    assert {getter["type"] for getter in getters(task)} <= GETTERS
    assert judge(task, full(tmp_path)) is None
    app = Here(PROBED.difference(APPS[task.domain]), tmp_path)
    refusal = judge(task, app)
    assert refusal is not None
    assert refusal.cause == "app"


@pytest.mark.parametrize("space", ["computer_use", "pyautogui"])
def test_every_solution_can_be_said_and_ends_the_episode(space: str) -> None:
    words = action_space(space)
    for task in PACK:
        *steps, last = task.raw["solution"]
        assert steps
        assert action_from_json(last["action"]) == Done("failure" if task.infeasible else "success")
        for step in (*steps, last):
            assert step["thinking"]
            assert step["brief"]
            found = {"x": 320, "y": 200} if "find" in step else {}
            action = action_from_json(step["action"] | found)
            for screen in SCREENS:
                text = words.format(action, screen, thinking=step["thinking"], brief=step["brief"])
                assert words.parse(text, screen).action == action


def test_a_solution_is_not_what_the_checker_looks_for_in_the_instruction() -> None:
    """Whoever reads the instruction alone must not be told the answer of tasks that ask to find it out."""
    for task in PACK:
        if task.family in ("terminal/count_lines", "terminal/sum_column", "chrome/look_up"):
            told = json.dumps(task.evaluator)
            answer = told.split('"expected": "')[1].split("\\n")[0].split("=")[-1]
            assert answer not in task.instruction.split()


def test_files_that_are_written_out_are_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["packs", str(tmp_path / "pack")])
    main()
    entries = survey(tmp_path / "pack", full(tmp_path))
    assert all(entry.runnable for entry in entries)
    by_id = {entry.id: entry.task for entry in entries}
    assert by_id == {task.id: task for task in PACK}
    save_tasks(PACK, tmp_path / "tasks.jsonl")
    again = load_tasks(tmp_path / "tasks.jsonl")
    assert [task.raw["solution"] for task in again] == [task.raw["solution"] for task in PACK]


def test_the_page_of_the_pack_tells_every_family() -> None:
    page = Path(__file__).parents[2] / "docs" / "task-pack.md"
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| `")]
    assert {row[0].strip("| `"): int(row[1]) for row in rows} == {n: family.level for n, family in FAMILIES.items()}
    first = {task.family: task for task in reversed(PACK)}
    for name, _, example in rows:
        task = first[name.strip("| `")]
        mark = " *(cannot be done)*" if task.infeasible else ""
        assert example.rstrip(" |") == task.instruction + mark
