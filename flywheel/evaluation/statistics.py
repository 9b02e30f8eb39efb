"""Intervals and tests for success rates; scipy where it has them.

Success rates of a few hundred episodes carry an error of several points, and episodes of one task are alike. So a rate
comes with a Wilson interval, repeats are resampled by task, and two policies are compared on the same tasks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, chi2

from flywheel.errors import DataError

REPETITIONS = 10_000


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """A difference of means and its bootstrap interval."""

    mean: float
    low: float
    high: float


def wilson(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a rate, e.g. 155 of 369 -> [.371, .471]. Without trials it is [0, 1].

    Raises: ValueError unless 0 <= successes <= trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials cannot be.")
    if trials == 0:
        return Interval(0.0, 1.0)
    interval = binomtest(successes, trials).proportion_ci(level, method="wilson")
    return Interval(float(interval.low), float(interval.high))


def pass_at_k(trials: int, successes: int, k: int) -> float:
    """Unbiased chance that at least one of k tries succeeds: 1 - C(n - c, k) / C(n, k). Source: arXiv:2107.03374.

    Raises: ValueError unless 0 <= successes <= trials and 1 <= k <= trials.
    """
    if not (0 <= successes <= trials and 1 <= k <= trials):
        raise ValueError(f"pass@{k} of {successes} successes in {trials} trials is not defined.")
    return 1 - math.comb(trials - successes, k) / math.comb(trials, k)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value on the discordant pairs, e.g. 12 against 3 -> .0352; 1 without any."""
    discordant = only_first + only_second
    return float(binomtest(only_first, discordant).pvalue) if discordant else 1.0


def mcnemar_chi2(only_first: int, only_second: int) -> tuple[float, float] | None:
    """(chi2, p-value) with continuity correction; good from 25 discordant pairs on, None without any."""
    discordant = only_first + only_second
    if discordant == 0:
        return None
    statistic = (abs(only_first - only_second) - 1) ** 2 / discordant
    return statistic, float(chi2.sf(statistic, 1))


def paired_bootstrap(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    seed: int,
    repetitions: int = REPETITIONS,
    level: float = 0.95,
) -> Difference:
    """mean(second - first) over pairs and its percentile interval. Raises `DataError` unless pairs match and exist."""
    if len(first) != len(second) or not len(first):
        raise DataError(f"A paired comparison needs as many results on each side, not {len(first)} and {len(second)}.")
    differences = np.asarray(second, float) - np.asarray(first, float)
    drawn = np.random.default_rng(seed).integers(0, len(differences), (repetitions, len(differences)))
    return Difference(float(differences.mean()), *_percentiles(differences[drawn].mean(1), level))


def cluster_bootstrap(
    per_task: Mapping[str, Sequence[float]], *, seed: int, repetitions: int = REPETITIONS, level: float = 0.95
) -> Interval:
    """Interval of the mean over episodes when tasks, with all of their repeats, are what is drawn anew.

    Raises: DataError if no task has a result.
    """
    tasks = [np.asarray(results, float) for _, results in sorted(per_task.items()) if len(results)]
    if not tasks:
        raise DataError("There is no result to resample; evaluate at least one task.")
    sums, counts = np.array([task.sum() for task in tasks]), np.array([len(task) for task in tasks])
    drawn = np.random.default_rng(seed).integers(0, len(tasks), (repetitions, len(tasks)))
    return Interval(*_percentiles(sums[drawn].sum(1) / counts[drawn].sum(1), level))


def _percentiles(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
