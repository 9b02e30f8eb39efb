"""Fewer and shorter rollouts for tasks that are mastered; all of them for the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.jobs.policy_gradient.allotment import Allotment
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import plan
from flywheel.testing import random_trajectory
from flywheel.types import Task, Trajectory
from tests.tiny import small_config, some_tasks

GROUP, LIMIT = 8, 9


def played(task: Task, successes: int, failures: int, turns: int) -> list[Trajectory]:
    """Successes of so many turns, and failures one turn longer."""
    kinds = [(1.0, turns)] * successes + [(0.0, turns + 1)] * failures
    return [replace(random_trajectory("t", length, (32, 32)), task=task, task_reward=r) for r, length in kinds]


def specs(tmp_path: Path, tasks: list[Task]) -> list[EpisodeSpec]:
    config = small_config(tmp_path)
    return plan(config, tasks, partition="p", samples=GROUP, temperature=1.0, max_turns=LIMIT)


@pytest.mark.parametrize(("successes", "expected"), [(0, 8), (4, 8), (6, 5), (7, 3), (8, 2)])
def test_mastered_tasks_get_fewer_rollouts_but_never_a_lone_one(successes: int, expected: int) -> None:
    (task,), allotment = some_tasks(1), Allotment()
    allotment.learn(played(task, successes, GROUP - successes, turns=3))
    assert allotment.rollouts(task.id, GROUP) == expected


def test_plans_are_cut_by_task(tmp_path: Path) -> None:
    tasks, allotment = some_tasks(3), Allotment()
    planned = specs(tmp_path, tasks)
    assert allotment.cut(planned) == planned
    allotment.learn([*played(tasks[0], 8, 0, turns=3), *played(tasks[1], 1, 7, turns=5)])
    left = allotment.cut(planned)
    kept = {task.id: [spec for spec in left if spec.task.id == task.id] for task in tasks}
    assert [len(kept[task.id]) for task in tasks] == [2, 8, 8]
    assert [{spec.max_turns for spec in kept[task.id]} for task in tasks] == [{3}, {5}, {LIMIT}]
    assert {spec.id for spec in left} <= {spec.id for spec in planned}


def test_a_task_that_is_forgotten_gets_its_rollouts_back() -> None:
    (task,), allotment = some_tasks(1), Allotment()
    allotment.learn(played(task, 8, 0, turns=3))
    allotment.learn(played(task, 0, 2, turns=4))
    assert allotment.rollouts(task.id, GROUP) == GROUP


def test_what_is_known_survives_in_a_state() -> None:
    (task,), allotment, other = some_tasks(1), Allotment(), Allotment()
    allotment.learn(played(task, 8, 0, turns=3))
    other.load_state_dict(allotment.state_dict())
    assert (other.rollouts(task.id, GROUP), other.turns(task.id, LIMIT)) == (2, 3)
