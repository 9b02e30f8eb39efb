"""Which successes an Entropulse round learns from: pooled by SQL, capped a task, and none from beyond the present."""

from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.jobs.policy_gradient.entropulse import Pool, _successes, entropulse
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from flywheel.trainers.model import fingerprint
from flywheel.types import PolicyRef, Trajectory
from tests.tiny import Tiny, demonstrations, small_config, some_tasks
from tests.trainers.test_rl import learner

OWN = Pool(iteration=2, partition="grpo-iter-02", attempt=1, versions=("grpo-iter-02@0", "grpo-iter-02@1"))


def success(name: str, policy: str, task: str, turns: int = 2, reward: float = 1.0) -> Trajectory:
    drawn = random_trajectory(name, turns, (32, 32))
    return replace(drawn, policy=PolicyRef(policy, ""), task=replace(drawn.task, id=task), task_reward=reward)


@pytest.fixture
def store(tmp_path: Path) -> TrajectoryStore:
    store = TrajectoryStore(tmp_path / "store", fsync=False)
    rounds = {
        "iter-01": [success("a", "sft", "one"), success("b", "sft", "two", reward=0.0)],
        "iter-02": [success("c", "iter-01", "one", turns=3), success("d", "iter-01", "one", turns=1)],
        "iter-03": [success("later", "iter-02", "one")],
        "eval-iter-01": [success("heldout", "iter-01", "six")],
    }
    for name, played in rounds.items():
        attempt = store.begin(name)
        store.publish_many(played, partition=name, attempt=attempt)
        store.seal(name, attempt, len(played))
        store.release(name)
    store.begin("grpo-iter-02")
    store.release("grpo-iter-02")
    assert store.begin("grpo-iter-02") == 2, "a later attempt, still empty, hides the first from SQL"
    live = [success("e", "grpo-iter-02@1", "three"), success("ahead", "grpo-iter-02@2", "four")]
    store.publish_many(live, partition="grpo-iter-02", attempt=1)
    return store


def pooled(tmp_path: Path, store: TrajectoryStore, *settings: str) -> list[str]:
    return [trajectory.id for trajectory in _successes(small_config(tmp_path, *settings), store, OWN, seed=0)]


def test_successes_of_the_iterations_and_of_this_run_so_far(tmp_path: Path, store: TrajectoryStore) -> None:
    """Neither failures, nor held-out episodes, nor what was published beyond the state that is gone on from."""
    assert sorted(pooled(tmp_path, store, "flywheel.per_task=0")) == ["a", "c", "d", "e"]


def test_the_shortest_of_each_task(tmp_path: Path, store: TrajectoryStore) -> None:
    assert sorted(pooled(tmp_path, store, "flywheel.per_task=1")) == ["d", "e"]


def test_no_more_than_its_steps_can_use_and_the_same_ones_again(tmp_path: Path, store: TrajectoryStore) -> None:
    settings = ("flywheel.per_task=0", "rl.guards.entropulse_steps=1", "sft.batch=2")
    found = pooled(tmp_path, store, *settings)
    assert len(found) == 2
    assert found == pooled(tmp_path, store, *settings)


def test_a_round_teaches_and_without_successes_does_nothing(tiny: Tiny, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store", fsync=False)
    config = small_config(tmp_path, "rl.guards.entropulse_steps=2", "sft.batch=4")
    store.begin("grpo-iter-02")
    pupil = learner(policy := tiny.fresh())
    before = fingerprint(policy.model.parameters())
    states = tmp_path / "states"
    assert entropulse(pupil, config, store, OWN, seed=0, states=states) == 0
    assert fingerprint(policy.model.parameters()) == before
    shown = demonstrations(tiny, some_tasks(3))
    attempt = store.begin("iter-01")
    store.publish_many([replace(t, iteration=1) for t in shown], partition="iter-01", attempt=attempt)
    store.seal("iter-01", attempt, len(shown))
    assert entropulse(pupil, config, store, OWN, seed=0, states=states) == 3
    assert fingerprint(policy.model.parameters()) != before
