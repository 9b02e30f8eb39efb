"""A judge against those who know."""

import pytest

from flywheel.evaluation.agreement import Agreement, Rate, agreement, to_json
from flywheel.evaluation.statistics import wilson


def test_counts_and_rates() -> None:
    judged = [True] * 8 + [True] * 2 + [False] * 5 + [False] * 3 + [None] * 4
    truth = [True] * 8 + [False] * 2 + [False] * 5 + [True] * 3 + [True] * 4
    found = agreement(judged, truth)
    assert found == Agreement(true_success=8, false_success=2, true_failure=5, false_failure=3, abstained=4)
    assert found.rates == {"accuracy": Rate(13, 18), "precision": Rate(8, 10), "recall": Rate(8, 11)}
    told = to_json(found)
    interval = wilson(8, 10)
    assert told["precision"] == {"hits": 8, "of": 10, "low": interval.low, "high": interval.high}
    assert told["abstained"] == 4


def test_a_judge_that_never_says_success_has_no_precision() -> None:
    found = agreement([False, False], [True, False])
    assert found.rates["precision"] == Rate(0, 0)
    assert (found.rates["precision"].interval.low, found.rates["precision"].interval.high) == (0.0, 1.0)


def test_verdicts_without_truth_are_a_bug() -> None:
    with pytest.raises(ValueError, match="shorter"):
        agreement([True, False], [True])
