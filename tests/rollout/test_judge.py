"""The outcome judge: how votes are read and counted, what it is shown, and that it never becomes a task reward."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flywheel.envs.simulated.oracle import next_step
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.rollout.episode import EpisodeSpec, run_episode
from flywheel.rollout.judge import Verdict, accepted, hosted_verdicts, needs_judge, question, read_vote, with_verdict
from flywheel.sections import JudgeConfig
from flywheel.testing import random_trajectory
from flywheel.types import Sampling, Trajectory
from tests.hosted_model import served
from tests.tiny import Tiny, desktop, some_tasks


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        ("The file is there.\nVerdict: success", True),
        ("The file is missing.\nVerdict: failure", False),
        ("**Verdict:** Success.", True),
        ("VERDICT - FAILURE", False),
        ("Verdict: success? No: the dialog is open.\nVerdict: failure", False),
        ("It was a success.", None),
        ("Verdict: successful so far", None),
        ("Verdict: unclear", None),
        ("", None),
    ],
)
def test_votes_are_read_from_the_last_verdict(text: str, vote: bool | None) -> None:
    assert read_vote(text) is vote


def open_ended(tiny: Tiny) -> Trajectory:
    """Played on a task without an evaluator."""
    (known,) = some_tasks(1)
    agent = ScriptedAgent(tiny.chat.space, lambda shadow, task: next_step(shadow, known))
    spec = EpisodeSpec("e", replace(known, evaluator={}), Sampling(), 6)
    return asyncio.run(run_episode(desktop(), agent, tiny.chat.space, spec))


def test_a_task_without_an_evaluator_is_played_and_not_judged(tiny: Tiny) -> None:
    trajectory = open_ended(tiny)
    assert (trajectory.outcome, trajectory.failure, trajectory.task_reward) == ("completed", None, None)
    assert needs_judge(trajectory)
    assert not needs_judge(replace(trajectory, failure="infrastructure", outcome="failed"))
    assert not needs_judge(replace(trajectory, task=some_tasks(1)[0]))
    assert not needs_judge(replace(trajectory, turns=()))


def test_a_verdict_is_a_reward_term_and_never_a_task_reward(tiny: Tiny) -> None:
    config, trajectory = JudgeConfig(enabled=True, accept=0.6), open_ended(tiny)
    told = with_verdict(trajectory, Verdict(2, 1))
    assert told.reward_terms == {"judge": pytest.approx(2 / 3), "judge_votes": 3.0}
    assert (told.task_reward, told.success, told.shaped_reward) == (None, False, None)
    assert accepted(told, config)
    assert not accepted(told, JudgeConfig(enabled=False))
    assert not accepted(with_verdict(trajectory, Verdict(1, 1)), config)
    assert not accepted(replace(told, task_reward=0.0), config)
    assert with_verdict(trajectory, Verdict(0, 0)) == trajectory


def test_the_judge_sees_the_task_the_last_screens_and_every_action() -> None:
    trajectory = random_trajectory("a", 5, (64, 48))
    trajectory = replace(
        trajectory, turns=(*trajectory.turns[:4], replace(trajectory.turns[4], action=None, error="?!"))
    )
    system, user = question(trajectory, 2).messages
    *pictures, told = user["content"]
    assert "Verdict: success" in system["content"]
    assert len(pictures) == 2
    assert question(trajectory, 9).messages[1]["content"][3]["image_url"] == pictures[0]["image_url"]
    assert told["text"].startswith(f"[Task]\n{trajectory.task.instruction}\n[Actions]\n1. {{")
    assert told["text"].endswith("5. nothing: ?!")


def test_votes_are_asked_for_together_and_answers_keep_their_order() -> None:
    """The server votes by the number in the instruction: n of three say success."""
    numbered = [
        replace(one, task=replace(one.task, instruction=f"Task {n} of four"))
        for n, one in enumerate(random_trajectory(str(n), 1, (32, 32)) for n in range(4))
    ]

    def votes(body: dict[str, Any]) -> list[dict[str, str]]:
        number = int(body["messages"][1]["content"][-1]["text"].split()[2])
        said = ["Verdict: success"] * number + ["Verdict: failure"] * (3 - number)
        return [{"content": text} for text in said[: body["n"] - (number == 0)]]

    with served(votes) as server:
        found = asyncio.run(hosted_verdicts(numbered, server.config, JudgeConfig(votes=3)))
    assert found == [Verdict(0, 2), Verdict(1, 2), Verdict(2, 1), Verdict(3, 0)]
    assert {(body["n"], body["temperature"]) for body in server.bodies} == {(3, 0.7)}
    assert [verdict.share for verdict in found] == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
    assert Verdict(0, 0).share is None
