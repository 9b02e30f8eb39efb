"""What an update's episodes say about the policy: figures that can be counted by hand; and which state was best."""

import json
from dataclasses import replace
from typing import Any

import pytest

from flywheel.jobs.policy_gradient.behaviour import behaviour
from flywheel.jobs.policy_gradient.evaluations import Evaluations
from flywheel.sections import GuardsConfig
from flywheel.testing import random_trajectory
from flywheel.types import Action, Click, Done, Key, Trajectory

A, B, END = Click(1, 1), Key(("enter",)), Done()


def episode(
    name: str, group: str, actions: tuple[Action | None, ...], reward: float | None = 0.0, **fields: Any
) -> Any:
    drawn = random_trajectory(name, len(actions), (32, 32))
    turns = tuple(
        replace(turn, action=action, logprobs=(-0.5, -0.1), completion_ids=(1, 2))
        for turn, action in zip(drawn.turns, actions, strict=True)
    )
    return replace(drawn, turns=turns, group_id=group, task_reward=reward, shaped_reward=reward, **fields)


def played() -> list[Trajectory]:
    """One solved group, one that fails in two ways, and an episode that was lost."""
    return [
        episode("a", "solved", (A, END), 1.0),
        episode("b", "solved", (A, END), 1.0),
        episode("c", "mixed", (A, A, A, B), 0.0, outcome="truncated"),
        episode("d", "mixed", (A, None, END), 1.0),
        episode("e", "mixed", (A, A, A, B), 0.0, outcome="truncated"),
        episode("f", "mixed", (A,), None, outcome="failed", failure="infrastructure"),
    ]


def test_figures_are_shares_of_what_they_say() -> None:
    assert behaviour(played()) == {
        "env_errors": pytest.approx(1 / 6),
        "shaped_reward": pytest.approx(3 / 5),
        "sampled_entropy": pytest.approx(0.3),
        "truncated": pytest.approx(2 / 5),
        "unparsed": pytest.approx(1 / 15),
        "repeated": pytest.approx(4 / 15),
        "zero_variance_groups": pytest.approx(1 / 2),
        "distinct_actions": pytest.approx(2.0),
    }


def test_a_policy_that_has_mastered_its_tasks_has_not_collapsed() -> None:
    figures = behaviour(played()[:2])
    assert "distinct_actions" not in figures
    assert figures["zero_variance_groups"] == 1.0


def test_an_unreadable_turn_repeats_nothing() -> None:
    assert behaviour([episode("a", "g", (None, None, END))])["repeated"] == 0.0


def test_nothing_judged_leaves_only_the_errors() -> None:
    assert behaviour([played()[-1]]) == {"env_errors": 1.0}


def evaluations(**config: Any) -> Evaluations:
    return Evaluations(GuardsConfig(**{"window": 2, "shaping_evaluations": 3, **config}))


def test_a_state_is_the_best_once_the_update_after_it_was_sound() -> None:
    made = evaluations()
    proposed = []
    for update, (success, sound) in enumerate(
        [(0.2, True), (0.4, True), (0.3, True), (0.9, True), (0.0, False), (0.1, True), (0.7, True), (0.9, True)], 1
    ):
        made.settle(sound)
        made.add(success, success)
        proposed.append(made.propose(update))
    assert proposed == [False, True, False, True, False, False, False, True]
    assert made.success == pytest.approx([0.3, 0.6, 0.05, 0.8])
    assert made.best == 2, "the state of update 4 was ruined, that of update 8 is not known yet"
    again = evaluations()
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    again.settle(True)
    assert again.best == 8


def test_shaping_runs_ahead_when_success_stays_flat() -> None:
    made, honest = evaluations(window=1), evaluations(window=1)
    gains = []
    for reward in (0.3, 0.35, 0.4, 0.45):
        made.add(0.2, reward)
        honest.add(reward, reward)
        gains.append(made.shaping_gain)
    assert gains == [0.0, 0.0, pytest.approx(0.1), pytest.approx(0.1)]
    assert honest.shaping_gain == 0.0
    assert honest.gained
    assert not made.gained
