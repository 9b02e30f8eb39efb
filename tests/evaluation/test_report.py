"""The denominator, families, JSON, and comparing two reports."""

import json

import pytest

from flywheel.errors import DataError
from flywheel.evaluation.report import EpisodeResult, compare, from_json, summarise, to_json
from flywheel.evaluation.statistics import wilson
from flywheel.types import EvalReport, FailureKind, PolicyRef

POLICY = PolicyRef("iteration-1", "/policies/1", parent="base", fingerprint="abc")


def episode(
    task: str,
    reward: float | None,
    *,
    family: str = "click",
    infeasible: bool = False,
    failure: FailureKind | None = None,
) -> EpisodeResult:
    return EpisodeResult(task, family, 1, infeasible, reward, failure)


RESULTS = [
    episode("a", 1.0),
    episode("a", 0.0),
    episode("b", None),
    episode("c", None, failure="agent"),
    episode("d", 1.0, family="type"),
    episode("e", 1.0, infeasible=True),
    episode("f", None, failure="infrastructure"),
    episode("g", None, failure="setup"),
    episode("h", 1.0, failure="evaluator", family="drag"),
]


def report(results: list[EpisodeResult] | None = None) -> EvalReport:
    return summarise(POLICY, "heldout", 3, RESULTS if results is None else results, wall_seconds=2.0)


def test_the_environments_failures_are_beside_the_rate_and_the_agents_are_in_it() -> None:
    summary = report()
    assert (summary.episodes, summary.solved, summary.env_errors) == (6, 3, 3)
    assert summary.episodes + summary.env_errors == len(RESULTS)
    assert summary.success_rate == 0.5
    assert (summary.ci_low, summary.ci_high) == wilson(3, 6)
    assert summary.per_task == {"a": (1.0, 0.0), "b": (0.0,), "c": (0.0,), "d": (1.0,), "e": (1.0,)}


def test_families_add_up_with_infeasible_tasks_apart() -> None:
    families = report().by_family
    assert list(families) == ["click", "drag", "infeasible", "type"]
    assert set(families["click"]) == {"episodes", "solved", "success_rate", "ci_low", "ci_high"}
    assert families["click"]["success_rate"] == 0.25
    assert families["infeasible"]["solved"] == 1
    assert families["drag"] == {"episodes": 0, "solved": 0, "success_rate": 0.0, "ci_low": 0.0, "ci_high": 1.0}
    assert sum(rates["episodes"] for rates in families.values()) == 6


def test_nothing_judged_is_no_rate_of_zero() -> None:
    with pytest.raises(DataError, match="None of 1 episodes could be judged"):
        report([episode("a", None, failure="infrastructure")])


def test_json_goes_there_and_back() -> None:
    data = json.loads(json.dumps(to_json(report())))
    first = ["success_rate", "ci_low", "ci_high", "episodes", "solved", "env_errors", "by_family", "policy", "seed"]
    assert list(data)[: len(first)] == first
    assert data["policy"] == "iteration-1"
    assert from_json(data) == report()


def test_json_that_lacks_something_says_what() -> None:
    data = to_json(report())
    del data["seed"], data["per_task"]
    with pytest.raises(DataError, match="lacks per_task, seed"):
        from_json(data)


def test_two_reports_are_compared_on_shared_tasks() -> None:
    before = report([episode(f"{i}", 0.0) for i in range(20)] + [episode("only here", 1.0)])
    after = report([episode(f"{i}", float(i < 12)) for i in range(20)])
    comparison = compare(before, after)
    assert (comparison.tasks, comparison.only_first, comparison.only_second) == (20, 0, 12)
    assert comparison.p_value == pytest.approx(2 / 2**12)
    assert comparison.difference.mean == pytest.approx(0.6)
    assert comparison.difference.low > 0
    assert compare(before, before).p_value == 1
    with pytest.raises(DataError, match="share no task"):
        compare(before, report([episode("elsewhere", 1.0)]))
