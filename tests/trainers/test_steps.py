"""Steps out of recorded trajectories, and what is granted to each; figures of the references where there are some."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from flywheel.errors import TrainingError
from flywheel.testing import random_trajectory
from flywheel.trainers.advantages import group_relative
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.steps import Steps, dart, gigpo_by_screen, make_steps, step_grpo, steps_in, webrl
from flywheel.types import Screenshot, TrainingSample, Turn
from tests.trainers.golden.registry import OWN, close, read


def screen(shade: int) -> Screenshot:
    return Screenshot.from_array(np.full((32, 32, 3), shade, np.uint8))


def rollout(reward: float, shades: list[int], *, group: str = "g", unread: tuple[int, ...] = ()) -> Rollout:
    """A trajectory of one step a shade, each of two tokens behind one token of an observation."""
    made = random_trajectory("t", len(shades), (32, 32))
    turns = tuple(
        replace(turn, observation=replace(turn.observation, screenshot=screen(shade)), completion_ids=(5, 6),
                action=None if n in unread else turn.action)
        for n, (turn, shade) in enumerate(zip(made.turns, shades, strict=True))
    )  # fmt: skip
    mask = np.tile([False, True, True], len(shades))
    zeros = np.zeros(len(mask), np.float32)
    sample = TrainingSample("t", group, np.arange(len(mask)), mask, zeros, mask.astype(np.float32), (), ())
    return Rollout(replace(made, turns=turns, task_reward=reward), sample, reward)


def steps_of(rewards: Tensor, groups: Tensor) -> Steps:
    every = torch.ones(len(rewards), dtype=torch.bool)
    count = torch.arange(len(rewards))
    return Steps(rewards, rewards > 0, every, groups, count, every, 0 * rewards, (None,) * len(rewards))


def test_steps_are_runs_of_trained_tokens() -> None:
    mask = np.array([False, True, True, False, False, True, False, True])
    assert steps_in(mask).tolist() == [0, 0, 1, 2]
    assert steps_in(np.array([True, False, True])).tolist() == [0, 1]


def test_what_is_known_of_each_step() -> None:
    steps = make_steps([rollout(1.0, [10, 20, 30], unread=(1,)), rollout(0.0, [10], group="h")])
    assert steps.score_S.tolist() == [1, 1, 1, 0]
    assert steps.solved_S.tolist() == [True, True, True, False]
    assert steps.parsed_S.tolist() == [True, False, True, True]
    assert steps.group_S.tolist() == steps.trajectory_S.tolist() == [0, 0, 0, 1]
    assert steps.last_S.tolist() == [False, False, True, True]
    assert steps.returns(0.5).tolist() == [0.25, 0.5, 1, 0]


def test_a_document_without_all_turns_is_refused() -> None:
    one = rollout(1.0, [10, 20])
    longer = replace(one.trajectory, turns=(*one.trajectory.turns, one.trajectory.turns[-1]))
    with pytest.raises(TrainingError, match="does not hold its 3 turns"):
        make_steps([replace(one, trajectory=longer)])
    silent = replace(one.trajectory.turns[0], completion_ids=())
    turns: tuple[Turn, ...] = (silent, *one.trajectory.turns)
    assert len(make_steps([replace(one, trajectory=replace(one.trajectory, turns=turns))]).score_S) == 2


def test_step_grpo_rewards_well_formed_steps_of_successes() -> None:
    case = next(case for case in read(OWN / "step_grpo.json")["cases"].values() if isinstance(case, dict))
    rewards = torch.tensor(case["step_rewards"], dtype=torch.float64)
    names = {name: number for number, name in enumerate(dict.fromkeys(case["index"]))}
    steps = steps_of(rewards, torch.tensor([names[name] for name in case["index"]]))
    close(step_grpo(steps), case["advantages"], 1e-6)
    unread = replace(steps, parsed_S=torch.zeros(len(rewards), dtype=torch.bool))
    assert not step_grpo(unread).any()


def test_dart_takes_the_population_deviation_over_all_steps() -> None:
    cases = read(OWN / "step_grpo.json")["cases"]
    steps = next(case for case in cases.values() if isinstance(case, dict))
    name, expected = next((name, case) for name, case in cases.items() if name.startswith("population_std"))
    group = name.removeprefix("population_std_variant_").split("(")[0]
    rewards = [reward for reward, own in zip(steps["step_rewards"], steps["index"], strict=True) if own == group]
    close(dart(steps_of(torch.tensor(rewards).double(), torch.zeros(len(rewards)).long())), expected, 1e-6)


def test_gigpo_compares_steps_that_saw_the_same_screen() -> None:
    """Two episodes of a task begin on one screen and part; only the first steps are compared as steps."""
    rollouts = [rollout(1.0, [10, 20]), rollout(0.0, [10, 200])]
    steps = make_steps(rollouts)
    episode_S = group_relative(steps.score_S, steps.group_S, scale="none")
    first, last = 0.95 / 2, 0.0
    assert (gigpo_by_screen(steps) - episode_S).tolist() == pytest.approx([first, last, -first, last])
    apart = make_steps([rollouts[0], replace(rollouts[1], sample=replace(rollouts[1].sample, group_id="other"))])
    assert gigpo_by_screen(apart).tolist() == [0, 0, 0, 0]


def test_webrl_adds_the_critics_gain_to_what_came_of_it() -> None:
    steps = make_steps([rollout(1.0, [1, 2]), rollout(0.0, [1, 2])], [np.array([0.2, 0.6]), np.array([0.5, 0.7])])
    expected = [0.4 - 0.05 + 0.9, 1.0, 0.2 - 0.05, -0.7 - 0.05]
    assert webrl(steps).tolist() == pytest.approx([min(value, 1.0) for value in expected])
