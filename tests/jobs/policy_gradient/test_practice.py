"""Which tasks are practised: by the failures of the iteration's rollouts, and never a family not at all."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.errors import DataError
from flywheel.jobs.policy_gradient.practice import Practice, failures_of
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from flywheel.types import Task
from tests.tiny import small_config, some_tasks


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return some_tasks(90, families=("click", "check", "type"))


@pytest.fixture
def store(tmp_path: Path, tasks: list[Task]) -> TrajectoryStore:
    """Rollouts of the first iteration: all clicks succeed, half of the checks, no typing; one was not judged."""
    store = TrajectoryStore(tmp_path / "store")
    for n, task in enumerate(tasks[:60]):
        reward = {"click": 1.0, "check": float(n % 2), "type": 0.0}[task.family]
        store.publish(
            replace(random_trajectory(f"{n:02d}", 1, (32, 32)), task=task, task_reward=reward), partition="iter-01"
        )
    lost = replace(random_trajectory("lost", 1, (32, 32)), task=tasks[0], task_reward=None, outcome="failed")
    store.publish(replace(lost, failure="infrastructure"), partition="iter-01")
    store.seal("iter-01", 1, 61)
    return store


def drawn(tmp_path: Path, store: TrajectoryStore, tasks: list[Task], focus: float, iteration: int = 1) -> Practice:
    config = small_config(tmp_path, f"rl.focus={focus}", "rl.families=[]")
    return Practice(config, tasks, failures_of(config, store, iteration), seed=0)


def shares(found: Practice, tasks: list[Task]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for task, probability in zip(tasks, found.probability, strict=True):
        total[task.family] += float(probability)
    return {family: pytest.approx(share, abs=1e-6) for family, share in total.items()}


def test_without_focus_families_are_drawn_evenly(tmp_path: Path, store: TrajectoryStore, tasks: list[Task]) -> None:
    assert shares(drawn(tmp_path, store, tasks, 0.0), tasks) == {"click": 1 / 3, "check": 1 / 3, "type": 1 / 3}


def test_focus_follows_the_failures(tmp_path: Path, store: TrajectoryStore, tasks: list[Task]) -> None:
    checks = [n % 2 for n, task in enumerate(tasks[:60]) if task.family == "check"]
    failed = 1 - sum(checks) / len(checks)
    assert shares(drawn(tmp_path, store, tasks, 1.0), tasks) == {
        "click": 0,
        "check": failed / (1 + failed),
        "type": 1 / (1 + failed),
    }
    half = {"click": 1 / 6, "check": 1 / 6 + failed / (1 + failed) / 2, "type": 1 / 6 + 1 / (1 + failed) / 2}
    assert shares(drawn(tmp_path, store, tasks, 0.5), tasks) == half


def test_an_iteration_without_rollouts_says_nothing(tmp_path: Path, store: TrajectoryStore, tasks: list[Task]) -> None:
    assert shares(drawn(tmp_path, store, tasks, 1.0, iteration=2), tasks) == {
        "click": 1 / 3,
        "check": 1 / 3,
        "type": 1 / 3,
    }


def test_draws_differ_by_scope_and_repeat(tmp_path: Path, store: TrajectoryStore, tasks: list[Task]) -> None:
    found = drawn(tmp_path, store, tasks, 0.5)
    first = found.draw(20, 3)
    assert first == found.draw(20, 3)
    assert first != found.draw(20, 4)
    assert len({task.id for task in first}) == 20


def test_no_more_tasks_than_can_be_drawn(tmp_path: Path, store: TrajectoryStore, tasks: list[Task]) -> None:
    assert len(drawn(tmp_path, store, tasks, 0.5).draw(1000, 0)) == len(tasks)


def test_families_that_no_task_has(tmp_path: Path, store: TrajectoryStore, tasks: list[Task]) -> None:
    config = small_config(tmp_path, "rl.families=[drag]")
    with pytest.raises(DataError, match=r"No training task is of the families drag \(rl.families\)\."):
        Practice(config, tasks, {}, seed=0)


def test_what_practice_shows_counts_from_then_on(tmp_path: Path, store: TrajectoryStore, tasks: list[Task]) -> None:
    """A family that is forgotten comes back, one that was not practised stays, a state holds what is known."""
    found = drawn(tmp_path, store, tasks, 1.0)
    click = next(task for task in tasks if task.family == "click")
    failed = [replace(random_trajectory(f"{n}", 1, (32, 32)), task=click, task_reward=0.0) for n in range(4)]
    typing = found.failures["type"]
    found.learn(failed)
    assert found.failures["click"] == pytest.approx(0.2)
    found.learn(failed)
    assert found.failures["click"] == pytest.approx(0.36)
    assert found.failures["type"] == typing
    other = drawn(tmp_path, store, tasks, 1.0)
    assert other.draw(20, 1) != found.draw(20, 1)
    other.load_state_dict(found.state_dict())
    assert other.draw(20, 1) == found.draw(20, 1)
