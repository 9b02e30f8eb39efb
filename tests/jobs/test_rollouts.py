"""Rollouts as a stage: everything that was played is in the store, sealed, and repeats from its seed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.errors import InfrastructureError, PartitionBusyError, TaskError
from flywheel.jobs import environments, rollouts
from flywheel.jobs.pool import RolloutPool
from flywheel.store.opening import open_store
from flywheel.types import Observation, Task, Trajectory
from tests.killing import in_child
from tests.school import School
from tests.tiny import Notes


def args_for(school: School, partition: str = "iter-01", **changes: Any) -> dict[str, Any]:
    given = {"policy": school.policy, "tasks": str(school.tasks), "partition": partition, "iteration": 1, "seed": 0}
    return {**given, **changes}


@pytest.fixture(scope="module")
def played(school: School, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Trajectory], Notes]:
    home, notes = tmp_path_factory.mktemp("rollouts"), Notes()
    config = school.config(home)
    result = rollouts.run(config, args_for(school), notes)
    return result, open_store(config).trajectories("iter-01"), notes


def test_the_result_counts_what_is_in_the_store(played: tuple[dict[str, Any], list[Trajectory], Notes]) -> None:
    result, stored, notes = played
    assert result["episodes"] == result["judged"] == len(stored) == 12
    assert result["solved"] == sum(t.success for t in stored)
    assert result["success_rate"] == pytest.approx(result["solved"] / 12)
    assert result["ci_low"] <= result["success_rate"] <= result["ci_high"]
    assert result["steps"] == sum(len(t.turns) for t in stored)
    assert result["env_errors"] == 0
    assert (result["partition"], result["attempt"]) == ("iter-01", 1)
    assert sum(family["episodes"] for family in result["by_family"].values()) == 12
    assert result["steps_per_second"] > 0
    assert result["tokens_per_second"] > 0
    assert notes.done[-1] == (12, 12, "episodes")
    assert "iter-01" in notes.lines[-1]


def test_stored_episodes_carry_what_training_needs(played: tuple[dict[str, Any], list[Trajectory], Notes]) -> None:
    result, stored, _ = played
    for trajectory in stored:
        assert trajectory.policy.version == "sft"
        assert trajectory.iteration == 1
        assert trajectory.shaped_reward is not None
        assert trajectory.reward_terms["task_reward"] == trajectory.task_reward
        for turn in trajectory.turns:
            assert len(turn.completion_ids) == len(turn.logprobs) > 0
            assert turn.prompt_ids
            assert turn.image_grid == (1, 8, 10)
            assert turn.observation.screenshot is not None
    mean = sum(t.reward_terms["parse_valid"] for t in stored) / len(stored)
    assert result["reward_terms"]["parse_valid"] == pytest.approx(mean)
    by_id = {t.id: t for t in stored}
    assert by_id[result["success_id"]].success
    assert not by_id[result["failure_id"]].success


def test_an_iteration_repeats_from_its_seed_alone(
    school: School, tmp_path: Path, played: tuple[dict[str, Any], list[Trajectory], Notes]
) -> None:
    """On two workers, in another home; and as a second attempt, which replaces the first."""
    config = school.config(tmp_path, "rollout.workers=2")
    other = rollouts.run(config, args_for(school, seed=1), Notes())
    again = rollouts.run(config, args_for(school), Notes())
    assert (other["attempt"], again["attempt"]) == (1, 2)
    stored = open_store(config).trajectories("iter-01")
    expected = played[1]
    assert [t.id for t in stored] == [t.id for t in expected]
    for one, other_one in zip(stored, expected, strict=True):
        assert [turn.completion_ids for turn in one.turns] == [turn.completion_ids for turn in other_one.turns]
        assert one.task_reward == other_one.task_reward
        assert one.reward_terms == other_one.reward_terms


class LostEnv(SimulatedEnv):
    """No desktop ever answers."""

    async def reset(self, task: Task) -> Observation:
        await asyncio.sleep(0)
        raise InfrastructureError("The desktop does not answer.")


def test_a_stage_that_fails_lets_go_of_its_partition(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = school.config(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(RolloutPool, "play", _fail)
        with pytest.raises(InfrastructureError, match="worker was lost"):
            rollouts.run(config, args_for(school), Notes())
    assert rollouts.run(config, args_for(school), Notes())["attempt"] == 2


def _fail(*_: Any, **__: Any) -> None:
    raise InfrastructureError("A worker was lost.")


def test_episodes_that_the_environment_lost_are_kept_apart(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the twelve fall on desktops that do not answer."""
    made: list[SimulatedEnv] = []

    def make(*args: Any) -> SimulatedEnv:
        made.append((LostEnv if len(made) in (1, 5) else SimulatedEnv)(*args))
        return made[-1]

    monkeypatch.setattr(environments, "SimulatedEnv", make)
    config = school.config(tmp_path)
    result = rollouts.run(config, args_for(school), Notes())
    assert (result["episodes"], result["judged"], result["env_errors"]) == (12, 10, 2)
    lost = [t for t in open_store(config).trajectories("iter-01") if t.failure == "infrastructure"]
    assert len(lost) == 2
    assert all(t.task_reward is None and t.shaped_reward is None for t in lost)


def test_a_second_process_on_the_same_partition_is_refused(school: School, tmp_path: Path) -> None:
    config = school.config(tmp_path)
    store = open_store(config)
    store.begin("iter-01")

    def second() -> str:
        try:
            rollouts.run(config, args_for(school), Notes())
        except PartitionBusyError as error:
            return str(error)
        return "it ran"

    store_holder = in_child(second)
    assert "'iter-01' is held by process" in store_holder
    assert "\n" not in store_holder
    store.release("iter-01")
    assert rollouts.run(config, args_for(school), Notes())["episodes"] == 12


def test_missing_tasks_are_one_sentence(school: School, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read as a task file"):
        rollouts.run(school.config(tmp_path), args_for(school, tasks=str(tmp_path / "gone.jsonl")), Notes())
