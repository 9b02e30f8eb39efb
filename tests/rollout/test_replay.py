"""Replay: when a success joins a group, and which one."""

import numpy as np
import pytest

from flywheel.rollout.replay import RULES, Success, SuccessBuffer


@pytest.mark.parametrize(
    ("rewards", "cookbook", "arpo"),
    [
        ([0.0, 0.0, 0.0, 0.0], True, True),
        ([0.0, 0.0, 0.0, 1.0], False, False),
        ([1.0, 1.0, 1.0, 1.0], False, False),
        ([0.1, 0.1, 0.1, 0.1], True, True),
        ([0.19, 0.19], True, True),
        ([0.2, 0.2], True, False),
        ([0.3, 0.3, 0.3], True, False),
        ([0.0, 0.0, 0.0, 0.49], True, False),
        ([0.0, 0.0999], True, True),
        ([0.0, 0.1001], True, False),
        ([0.5, 0.0], False, False),
        ([0.0], True, True),
    ],
)
def test_when_a_success_joins(rewards: list[float], cookbook: bool, arpo: bool) -> None:
    """ARPO's deviation is that of the population: [0, 0.1] has .05, a sample deviation would be .07."""
    assert RULES["cookbook"].fires(rewards) is cookbook
    assert RULES["arpo"].fires(rewards) is arpo


def test_a_group_without_rows_is_a_bug() -> None:
    with pytest.raises(ValueError, match="without rows"):
        RULES["cookbook"].fires([])


def success(task: str, number: int) -> Success:
    return Success(task, "iter-01", f"{task}-{number}")


def test_the_newest_stay_and_none_is_there_twice() -> None:
    buffer = SuccessBuffer(3, seed=0)
    for number in (0, 1, 2, 2, 3, 4):
        buffer.add(success("a", number))
    drawn = {found.trajectory_id for n in range(60) if (found := buffer.draw("a", n))}
    assert len(buffer) == 3
    assert drawn == {"a-2", "a-3", "a-4"}


def test_draws_repeat_by_scope_and_survive_a_state() -> None:
    buffer, other = SuccessBuffer(8, seed=1), SuccessBuffer(8, seed=1)
    for number in range(8):
        buffer.add(success("a", number))
    draws = [buffer.draw("a", 3, f"group-{n}") for n in range(20)]
    assert len(set(draws)) > 3
    other.load_state_dict(buffer.state_dict())
    assert [other.draw("a", 3, f"group-{n}") for n in range(20)] == draws
    assert [SuccessBuffer(8, seed=2).draw("a", n) for n in range(3)] == [None] * 3


def test_the_very_task_comes_before_those_of_its_base_id() -> None:
    buffer = SuccessBuffer(8, seed=0)
    buffer.add(success("mail_chunk0", 0))
    buffer.add(success("mail_chunk1", 1))
    buffer.add(success("mailbox", 2))
    assert {buffer.draw("mail_chunk1", n) for n in range(9)} == {success("mail_chunk1", 1)}
    assert {buffer.draw("mail_chunk7", n) for n in range(30)} == {success("mail_chunk0", 0), success("mail_chunk1", 1)}
    assert {buffer.draw("mail", n) for n in range(30)} == {success("mail_chunk0", 0), success("mail_chunk1", 1)}
    assert buffer.draw("post", 0) is None


def test_draws_are_even() -> None:
    buffer = SuccessBuffer(4, seed=0)
    for number in range(4):
        buffer.add(success("a", number))
    found = [buffer.draw("a", n) for n in range(400)]
    counts = np.bincount([int(f.trajectory_id[-1]) for f in found if f])
    assert counts.min() > 70
