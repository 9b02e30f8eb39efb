"""Which tasks practice may draw, and which it makes: by what rollouts of before and practice itself have shown."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import ConfigError, DataError
from flywheel.jobs import grpo
from flywheel.jobs.policy_gradient.curriculum import Ladder, grow, select_mixed, success_by_rung
from flywheel.jobs.policy_gradient.practice import Practice, make_practice
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from flywheel.types import Task, Trajectory
from tests.jobs.test_grpo import args_for, stored
from tests.school import School
from tests.tiny import Notes, small_config, some_tasks

RUNGS = [("click", 1), ("click", 2), ("click", 4), ("type", 2), ("type", 3)]


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return some_tasks(60, families=("click", "type"), levels=(1, 2, 3))


def played(task: Task, rewards: list[float | None], name: str = "t") -> list[Trajectory]:
    drawn = (random_trajectory(f"{name}-{task.id}-{n}", 1, (32, 32)) for n in range(len(rewards)))
    return [replace(one, task=task, task_reward=reward) for one, reward in zip(drawn, rewards, strict=True)]


def rung(task: Task) -> tuple[str, int]:
    return task.family, task.level


# --- ladder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("success", "climbed"),
    [
        ({}, [("click", 1), ("type", 2)]),
        ({("click", 1): 0.69}, [("click", 1), ("type", 2)]),
        ({("click", 1): 0.7}, [("click", 1), ("click", 2), ("type", 2)]),
        ({("click", 1): 0.9, ("click", 2): 0.8}, [("click", 1), ("click", 2), ("click", 4), ("type", 2)]),
        ({("click", 2): 0.9, ("type", 2): 1.0}, [("click", 1), ("type", 2), ("type", 3)]),
    ],
)
def test_a_level_opens_when_all_below_it_are_climbed(
    success: dict[tuple[str, int], float], climbed: list[tuple[str, int]]
) -> None:
    assert Ladder(RUNGS, success, 0.7).open == climbed
    assert Ladder(RUNGS, success, 0.0).open == RUNGS


def test_a_ladder_learns_opens_and_closes_again(tasks: list[Task]) -> None:
    first = next(task for task in tasks if rung(task) == ("click", 1))
    ladder = Ladder(map(rung, tasks), {("click", 1): 0.5}, 0.7)
    ladder.learn(played(first, [1.0, 1.0, 1.0]))
    assert ladder.success == {("click", 1): pytest.approx(0.6)}
    ladder.learn(played(first, [1.0] * 8))
    ladder.learn(played(first, [1.0] * 8))
    assert ("click", 2) in ladder.open
    other = Ladder(map(rung, tasks), {}, 0.7)
    other.load_state_dict(ladder.state_dict())
    assert other.open == ladder.open
    assert other.failing() == ladder.failing() == {("click", 1): pytest.approx(1 - ladder.success["click", 1])}
    ladder.learn(played(first, [0.0] * 8))
    assert ("click", 2) not in ladder.open


def test_draws_stay_on_open_levels(tasks: list[Task], tmp_path: Path) -> None:
    config = small_config(tmp_path, "rl.open_levels=0.7", "rl.families=[]", "rl.focus=0.0")
    practice = Practice(config, tasks, {}, 0, {("type", 1): 0.9})
    drawn = practice.draw(60, 0)
    assert {rung(task) for task in drawn} == {("click", 1), ("type", 1), ("type", 2)}
    assert len(drawn) == sum(rung(task) in {("click", 1), ("type", 1), ("type", 2)} for task in tasks)
    shares: Counter[str] = Counter()
    for task, probability in zip(tasks, practice.probability, strict=True):
        shares[task.family] += probability  # type: ignore[assignment]
    assert shares == {"click": pytest.approx(0.5), "type": pytest.approx(0.5)}


# --- growth -----------------------------------------------------------------------------------------------


def test_new_tasks_follow_the_failures(tmp_path: Path, tasks: list[Task]) -> None:
    config = small_config(tmp_path)
    made = grow(config, {("click", 1): 0.0, ("type", 2): 0.25, ("menu", 1): 0.75}, 60, seed=3)
    counts = Counter(map(rung, made))
    assert set(counts) == {("type", 2), ("menu", 1)}
    assert counts["menu", 1] > 2 * counts["type", 2]
    assert len({task.id for task in made}) == len(made) > 50
    assert {task.split for task in made} == {"train"}
    again = grow(config, {("click", 1): 0.0, ("type", 2): 0.25, ("menu", 1): 0.75}, 60, seed=3)
    assert [task.id for task in again] == [task.id for task in made]
    assert grow(config, {("click", 1): 0.0}, 5, seed=3) == grow(config, {}, 5, seed=3) == []


def test_tasks_that_are_files_cannot_grow(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"those of /osworld are files; set rl\.grow=0\."):
        grow(small_config(tmp_path, "tasks.source=/osworld"), {("click", 1): 1.0}, 1, seed=0)


def test_an_update_holds_its_share_of_new_tasks(tasks: list[Task], tmp_path: Path) -> None:
    config = small_config(tmp_path, "rl.grow=0.25", "rl.open_levels=0.7", "rl.families=[type]")
    practice = Practice(config, tasks, {}, 0, {("type", 1): 0.4, ("click", 1): 0.1})
    drawn, known = practice.draw(8, 5), {task.id for task in tasks}
    new = [task for task in drawn if task.id not in known]
    assert len(drawn) == 8
    assert [rung(task) for task in new] == [("type", 1)] * 2
    assert drawn == practice.draw(8, 5)
    assert practice.draw(8, 6)[-1].id != drawn[-1].id


# --- read from the store -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, tasks: list[Task]) -> TrajectoryStore:
    """Task 0 is solved and failed over two iterations, 1 always solved, 2 always failed, 3 once not judged."""
    store = TrajectoryStore(tmp_path / "store")
    found: dict[str, list[tuple[int, list[float | None]]]] = {
        "iter-01": [(0, [1.0]), (1, [1.0, 1.0]), (2, [0.0, 0.0]), (3, [0.0, None])],
        "iter-02": [(0, [0.0, 0.0])],
        "eval-iter-01": [(1, [0.0])],
    }
    for partition, rows in found.items():
        for number, rewards in rows:
            for trajectory in played(tasks[number], rewards, partition):
                store.publish(trajectory, partition=partition)
    return store


def test_selected_tasks_were_both_solved_and_failed(store: TrajectoryStore, tasks: list[Task], tmp_path: Path) -> None:
    config = small_config(tmp_path, "rl.select=mixed", "rl.families=[]")
    assert select_mixed(config, store, tasks, 2) == [tasks[0]]
    assert make_practice(config, store, tasks, 2, seed=0).draw(9, 0) == [tasks[0]]
    with pytest.raises(DataError, match=r"both solved and failed in rollouts up to iter-01 .*rollout\.samples"):
        make_practice(config, store, tasks, 1, seed=0)


def test_success_by_level_is_that_of_one_iteration(store: TrajectoryStore, tasks: list[Task], tmp_path: Path) -> None:
    config = small_config(tmp_path, "rl.families=[]")
    rates = success_by_rung(config, store, 1)
    assert rates == make_practice(config, store, tasks, 1, seed=0).ladder.success
    assert rates == {("click", 1): 1.0, ("type", 1): 1.0, ("click", 2): 0.0, ("type", 2): 0.0}
    assert success_by_rung(config, store, 3) == {}


def test_a_run_practises_tasks_that_no_file_holds(school: School, tmp_path: Path) -> None:
    """From the second update on: before that, nobody knows what fails."""
    config = school.config(tmp_path, "rl.grow=0.67", "rl.steps=2")
    grpo.run(config, args_for(school, tmp_path), Notes())
    known = {task.id for task in load_tasks(school.tasks)}
    new = {t.group_id for t in stored(config) if t.task.id not in known}
    assert {group.split("-")[3] for group in new} == {"0001"}
    assert len(new) == 2
    assert {t.task.split for t in stored(config)} == {"train"}
