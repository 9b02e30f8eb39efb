"""Public OSWorld tasks, unmodified, on real desktops: nothing done scores 0, a scripted solution 1; set-up holds."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.datasets.needs import PROBED, Here, cache_name, downloads, judge
from flywheel.datasets.osworld import read_tasks
from flywheel.datasets.task_files import task_from_json
from flywheel.envs.base import ObserveOptions
from flywheel.envs.server.machines.xvfb.apps import installed_apps
from flywheel.envs.server.places import server_python
from flywheel.errors import EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Action, Click, Code, Done, Key, Task, Type, Wait
from tests.datasets.test_osworld import made, step
from tests.envs.server.episodes import standins
from tests.envs.server.episodes.working import OSWORLD, Working, needs_desktops, public_task, working

pytestmark = [pytest.mark.desktop, needs_desktops]

SEEING = ObserveOptions(image="jpeg", accessibility=True, accessibility_chars=20_000)
SEVERAL = 3
"""One in so many of the tasks that need downloads is set up, with stand-ins for its files; all would take an hour."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def worker(tmp_path: Path, cache: Path) -> Iterator[Working]:
    with working("xvfb", tmp_path / "0", screen=[1280, 720], cache=str(cache)) as worker:
        worker.start()
        yield worker
        worker.close()


def stand_in(task: Task, cache: Path) -> Task:
    """The task, its downloads made up in the cache."""
    files = [cache / cache_name(task.id) / file.name for file in downloads(task)]
    if lacking := [str(path) for path in files if not path.exists()]:
        subprocess.run([str(server_python()), str(standins.__file__), *lacking], check=True, capture_output=True)
    return task


def play(worker: Working, task: Task, actions: list[Action]) -> float:
    worker.reset(task)
    for action in actions:
        result = worker.step(action, None)
        assert result.error is None, (action, result.error)
    score = worker.evaluate()
    worker.recycle()
    return score


def await_named(worker: Working, name: str) -> tuple[int, int]:
    """The middle of the element of that name, once the accessibility tree has it."""
    for _ in range(60):
        tree = worker.step(Wait(0.5)).observation.accessibility_tree or ""
        for columns in (line.split("\t") for line in tree.splitlines()[1:]):
            if len(columns) >= 5 and columns[1] == name:
                x, y, width, height = (int(number) for number in re.findall(r"-?\d+", columns[3] + columns[4]))
                return x + width // 2, y + height // 2
    raise AssertionError(f"{name} is not on the screen:\n{tree}")


def press(worker: Working, name: str) -> None:
    assert worker.step(Click(*await_named(worker, name)), None).error is None


def need(*apps: str) -> None:
    if lacking := set(apps) - installed_apps():
        pytest.skip(f"needs {', '.join(sorted(lacking))}")


def test_a_deleted_file_is_brought_back(worker: Working, cache: Path) -> None:
    task = stand_in(public_task("os/5ea617a3"), cache)
    back = Code("mv ~/.local/share/Trash/files/poster_party_night.webp ~/Desktop", "bash")
    assert play(worker, task, []) == 0.0
    assert play(worker, task, [back, Done()]) == 1.0


def test_a_bookmark_folder_is_made_in_the_browser(worker: Working) -> None:
    need("chrome")
    task = public_task("chrome/2ad9387a")
    assert play(worker, task, [Done()]) == 0.0
    worker.reset(task, SEEING)
    worker.step(Key(("ctrl", "shift", "o")))
    press(worker, "Organize")
    press(worker, "Add new folder")
    await_named(worker, "Save")
    worker.step(Type("Favorites\n"))
    worker.step(Done())
    assert worker.evaluate() == 1.0


def test_a_cell_is_filled_in_calc(worker: Working, cache: Path) -> None:
    need("libreoffice_calc")
    task = stand_in(public_task("libreoffice_calc/357ef137"), cache)
    to_e3 = [Key(("ctrl", "home")), *[Key(("right",))] * 4, *[Key(("down",))] * 2]
    assert play(worker, task, [Done()]) == 0.0
    assert play(worker, task, [*to_e3, Type("191.6667\n"), Done()]) == 1.0


def test_pages_are_opened_and_looked_at_through_the_browsers_port(worker: Working) -> None:
    need("chrome")
    page = "file:///usr/share/dict/"
    task = task_from_json(
        made(
            config=[
                step("launch", command=["google-chrome", "--remote-debugging-port=1337"]),
                step("launch", command=["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]),
                step("chrome_open_tabs", urls_to_open=[page]),
            ],
            evaluator={
                "func": "is_expected_tabs",
                "result": {"type": "open_tabs_info"},
                "expected": {"type": "rule", "rules": {"type": "url", "urls": [page]}},
            },
        )
    )
    assert play(worker, task, [Done()]) == 1.0
    assert play(worker, task, [Key(("ctrl", "t")), Wait(1), Type("chrome://version\n"), Wait(1), Done()]) == 0.0


def test_public_tasks_are_set_up_or_refused_with_the_reason(worker: Working, cache: Path) -> None:
    if not OSWORLD.is_dir():
        pytest.skip("OSWorld's task files are not beside the repository")
    here = Here(PROBED - {"gnome-terminal", "gnome-shell", "systemd"}, cache)
    fates: Counter[str] = Counter()
    failed: list[str] = []
    for number, (_, task) in enumerate(read_tasks(OSWORLD)):
        assert isinstance(task, Task)
        refusal = judge(task, here)
        if refusal is not None and (refusal.cause != "file" or number % SEVERAL):
            fates["refused" if refusal.cause != "file" else "left out"] += 1
            continue
        try:
            worker.reset(stand_in(task, cache))
            fates["set up"] += 1
            if not downloads(task):  # what a checker makes of stand-ins says nothing
                fates[str(worker.evaluate())] += 1
        except SetupError as error:
            if "cannot run on this desktop" in str(error):
                fates["refused"] += 1
                continue
            failed.append(f"{task.domain}/{task.id}: {error}")
        except EvaluatorError as error:
            failed.append(f"{task.domain}/{task.id}: {error}")
        except InfrastructureError as error:
            pytest.fail(f"{task.domain}/{task.id}: {error}")
        worker.recycle()
    assert fates["set up"] >= 80, fates
    assert not fates["1.0"], "nothing was done, and yet it was solved"
    # Stand-ins cannot be right in content: what a task unpacks or runs out of its archive is not there.
    assert len(failed) <= fates["set up"] // 20, failed
