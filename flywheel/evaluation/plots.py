"""Pictures of success, as PNG bytes. Matplotlib is imported when something is drawn: it takes half a second."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flywheel.evaluation.report import Rates, rates_of
from flywheel.types import EvalReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def success_by_iteration(reports: Sequence[EvalReport]) -> bytes:
    """Held-out success against iteration, with intervals; iteration 0 is the starting policy."""
    figure, axes = _figure()
    rates, errors = _percent([rates_of(report) for report in reports])
    axes.errorbar(range(len(reports)), rates, yerr=errors, marker="o", capsize=3)
    axes.set(xlabel="iteration", ylabel="held-out success, %", ylim=(0, 100), xticks=range(len(reports)))
    return _png(figure)


def success_in_training(curves: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
    """Success of the rollouts of each update, in [0, 1]: for each name the mean of its runs, and their range.

    Which tasks are drawn follows what fails, so a curve can stay level while the policy rises.
    """
    figure, axes = _figure()
    for name, runs in curves.items():
        length = min(map(len, runs), default=0)
        success_RT = 100 * np.array([run[:length] for run in runs])
        steps = range(1, length + 1)
        (line,) = axes.plot(steps, success_RT.mean(0), label=name)
        axes.fill_between(steps, success_RT.min(0), success_RT.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="update", ylabel="success of rollouts, %", ylim=(0, 100))
    axes.legend()
    return _png(figure)


def success_side_by_side(groups: Mapping[str, Mapping[str, Rates]]) -> bytes:
    """A bar with its interval for each name, in groups: group -> name -> rates. Every group has the same names."""
    figure, axes = _figure()
    names = list(next(iter(groups.values())))
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        rates, errors = _percent([members[name] for members in groups.values()])
        at = np.arange(len(groups)) + (index - (len(names) - 1) / 2) * width
        axes.bar(at, rates, width, yerr=errors, capsize=2, label=name)
    axes.set(ylabel="held-out success, %", ylim=(0, 100), xticks=range(len(groups)), xticklabels=list(groups))
    axes.legend()
    return _png(figure)


def _figure() -> "tuple[Figure, Any]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), dpi=80, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    return figure, axes


def _percent(rates: Sequence[Rates]) -> tuple[list[float], list[list[float]]]:
    """Rates in percent, and how far their intervals reach below and above."""
    values = [100 * one["success_rate"] for one in rates]
    below = [100 * (one["success_rate"] - one["ci_low"]) for one in rates]
    above = [100 * (one["ci_high"] - one["success_rate"]) for one in rates]
    return values, [below, above]


def _png(figure: "Figure") -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
