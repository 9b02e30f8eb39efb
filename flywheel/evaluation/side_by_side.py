"""Algorithms side by side: what each made of one starting policy, over several seeds, on the same held-out tasks.

The hardest family, the one that the start solves least often, is shown apart: a mean over families that are solved
already hides what an algorithm can do. Choosing it by the start's own report favours every algorithm alike, by
regression to the mean; compare algorithms with each other before believing a small gain.
"""

import base64
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.evaluation.plots import success_in_training, success_side_by_side
from flywheel.evaluation.report import Comparison, Rates, compare, pool, rates_of, to_json
from flywheel.types import EvalReport

START = "start"
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Titles and rows."""


@dataclass(frozen=True, slots=True)
class Run:
    """One algorithm on one seed. `curve` is the success of the rollouts of each update, in [0, 1]."""

    algorithm: str
    seed: int
    report: EvalReport
    curve: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """All runs of one algorithm together, and against the start; `family` is the hardest."""

    name: str
    seeds: tuple[int, ...]
    total: Rates
    family: Rates
    gain: Comparison
    family_gain: Comparison


def hardest_family(start: EvalReport) -> str:
    """The family with the lowest success; the first by name where several are level."""
    judged = {name: rates["success_rate"] for name, rates in start.by_family.items() if rates["episodes"]}
    return min(sorted(judged), key=lambda name: judged[name])


def standings(start: EvalReport, runs: Sequence[Run], family_tasks: Container[str]) -> list[Standing]:
    """One for each algorithm, in the order in which they first appear.

    Args:
        family_tasks: ids of the tasks of the start's hardest family.
    """
    family = hardest_family(start)
    found = []
    for name in dict.fromkeys(run.algorithm for run in runs):
        own = [run for run in runs if run.algorithm == name]
        pooled = pool([run.report for run in own])
        found.append(
            Standing(
                name=name,
                seeds=tuple(run.seed for run in own),
                total=rates_of(pooled),
                family=pooled.by_family[family],
                gain=compare(start, pooled),
                family_gain=compare(start, pooled, tasks=family_tasks),
            )
        )
    return found


def side_by_side_json(start: EvalReport, runs: Sequence[Run], found: Sequence[Standing]) -> dict[str, Any]:
    """Everything that the table, the page and a later reader need."""
    return {
        "start": to_json(start),
        "hardest_family": hardest_family(start),
        "algorithms": [asdict(standing) for standing in found],
        "runs": [
            {"algorithm": run.algorithm, "seed": run.seed, "curve": run.curve, "report": to_json(run.report)}
            for run in runs
        ],
    }


def side_by_side_page(
    start: EvalReport, runs: Sequence[Run], found: Sequence[Standing], tables: Sequence[Table]
) -> str:
    """A self-contained HTML page: tables as they were printed, held-out success as bars, training as curves."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    family = hardest_family(start)
    groups = {
        "all tasks": {START: rates_of(start)} | {standing.name: standing.total for standing in found},
        family: {START: start.by_family[family]} | {standing.name: standing.family for standing in found},
    }
    curves = {standing.name: [run.curve for run in runs if run.algorithm == standing.name] for standing in found}
    pictures = [
        ("Held-out success with 95% intervals", success_side_by_side(groups)),
        ("Success of rollouts while training: mean and range over seeds", success_in_training(curves)),
    ]
    environment = Environment(loader=PackageLoader("flywheel.evaluation"), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("side_by_side.html.jinja").render(
        policy=start.policy.version,
        family=family,
        tables=tables,
        pictures=[(caption, base64.b64encode(png).decode()) for caption, png in pictures],
    )
