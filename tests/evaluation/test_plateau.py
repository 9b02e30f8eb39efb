"""The plateau rule on histories whose answer is plain."""

import pytest

from flywheel.errors import DataError
from flywheel.evaluation.plateau import PerTask, gain, plateau

TASKS = 50


def results(solved: int, tasks: int = TASKS) -> PerTask:
    """The first `solved` tasks are solved, each in all of its 4 episodes."""
    return {f"task-{i:03}": [float(i < solved)] * 4 for i in range(tasks)}


def test_rising_success_goes_on() -> None:
    decision = plateau([results(n) for n in (10, 15, 20, 25, 30)])
    assert not decision.stop
    assert decision.best == 4
    assert decision.reason == "The latest is the best so far: iteration 4."


def test_it_stops_after_patience_and_keeps_the_best() -> None:
    decision = plateau([results(n) for n in (10, 20, 20, 19, 20)])
    assert decision.stop
    assert decision.best == 1
    assert decision.reason == "No improvement in 3 iterations over iteration 1."


def test_patience_starts_anew_with_each_improvement() -> None:
    assert not plateau([results(n) for n in (10, 10, 10, 20, 20, 20)]).stop
    assert plateau([results(n) for n in (10, 10, 10, 20, 20, 20, 20)]).stop


def test_slow_gains_add_up_because_the_best_is_what_is_compared_with() -> None:
    slow = [results(n, 1000) for n in (100, 110, 119, 125)]
    decision = plateau([slow[0], slow[2]], min_gain=0.05)
    assert decision.best == 1


def test_a_gain_within_its_error_counts_only_if_it_is_large() -> None:
    before = {f"{i}": [float(i % 2)] for i in range(20)}
    after = {f"{i}": [float(i % 2 if i > 4 else 1 - i % 2)] for i in range(20)}
    change = gain(before, after)
    assert change.mean == pytest.approx(0.05)
    assert change.error > change.mean
    assert change.improves(0.02)
    assert not change.improves(0.06)


def test_never_before_the_minimum_never_after_the_maximum() -> None:
    flat = [results(10)] * 3
    early = plateau(flat, patience=1, minimum=3)
    assert not early.stop
    assert "at least 3" in early.reason
    assert plateau([results(10)] * 4, patience=1, minimum=3).stop
    rising = plateau([results(n) for n in (10, 20, 30)], maximum=2)
    assert rising.stop
    assert rising.reason == "All 2 iterations are done; the best is iteration 2."


def test_the_starting_policy_can_be_the_best() -> None:
    decision = plateau([results(n) for n in (20, 10, 10, 10)])
    assert decision.stop
    assert decision.best == 0
    assert "the starting policy" in decision.reason


def test_only_shared_tasks_are_compared() -> None:
    assert gain({"a": [0.0], "b": [1.0]}, {"a": [1.0], "c": [0.0]}).mean == 1
    assert gain({"a": [0.0]}, {"a": [1.0]}).error == 0
    with pytest.raises(DataError, match="share no task"):
        gain({"a": [0.0]}, {"b": [1.0]})
    with pytest.raises(DataError, match="starting policy"):
        plateau([])
