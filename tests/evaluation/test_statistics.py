"""Figures of the specification, limits and refusals."""

import numpy as np
import pytest

from flywheel.errors import DataError
from flywheel.evaluation.statistics import (
    cluster_bootstrap,
    mcnemar_chi2,
    mcnemar_exact,
    paired_bootstrap,
    pass_at_k,
    wilson,
)


def test_the_wilson_interval_of_the_specification() -> None:
    assert wilson(155, 369) == pytest.approx((0.371, 0.471), abs=5e-4)
    assert wilson(0, 0) == (0, 1)
    assert wilson(0, 5).low == 0
    assert wilson(5, 5).high == 1
    with pytest.raises(ValueError, match="6 successes in 5 trials"):
        wilson(6, 5)


def test_pass_at_k_is_the_chance_of_a_hit() -> None:
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(10, 0, 10) == 0
    assert pass_at_k(10, 1, 10) == 1
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(4, 2, 5)


def test_mcnemar_looks_at_discordant_pairs_only() -> None:
    assert mcnemar_exact(12, 3) == pytest.approx(0.0352, abs=5e-5)
    assert mcnemar_exact(3, 12) == mcnemar_exact(12, 3)
    assert mcnemar_exact(0, 0) == 1
    assert mcnemar_chi2(0, 0) is None


def test_the_paired_bootstrap_is_deterministic_and_signed() -> None:
    first, second = np.zeros(40), np.r_[np.ones(10), np.zeros(30)]
    difference = paired_bootstrap(first, second, seed=1)
    assert difference == paired_bootstrap(first, second, seed=1)
    assert difference.mean == 0.25
    assert 0 < difference.low < 0.25 < difference.high
    with pytest.raises(DataError, match="3 and 2"):
        paired_bootstrap([1, 2, 3], [1, 2], seed=0)


def test_repeats_of_one_task_are_not_independent() -> None:
    rng = np.random.default_rng(0)
    alike = {f"task-{i}": [float(i % 2)] * 8 for i in range(30)}
    mixed = {f"task-{i}": rng.permutation([0.0, 1.0] * 4).tolist() for i in range(30)}
    wide, narrow = (cluster_bootstrap(results, seed=0) for results in (alike, mixed))
    assert narrow == (0.5, 0.5)
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * 0.5 / 30**0.5, abs=0.05)
    with pytest.raises(DataError, match="no result"):
        cluster_bootstrap({"task": []}, seed=0)
