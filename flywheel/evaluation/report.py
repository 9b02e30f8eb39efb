"""From episodes to an evaluation report, and from two reports to a comparison.

The rule of the denominator: success is a rate over *judged* episodes. An episode that the environment lost
(infrastructure, set-up or evaluator failure) says nothing about the policy, so it is never scored 0; it is counted in
`env_errors`, beside the rate, so it never vanishes either: attempts = episodes + env_errors. Everything else is the
policy's own doing and is judged: an agent that failed, ran out of turns or wrote what nobody can read has not solved
its task.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flywheel.errors import DataError
from flywheel.evaluation.statistics import Difference, mcnemar_exact, paired_bootstrap, wilson
from flywheel.types import EvalReport, FailureKind, PolicyRef, Split

ENVIRONMENT_FAILURES = frozenset({"infrastructure", "setup", "evaluator"})
INFEASIBLE = "infeasible"
SOLVED = 0.5
Rates = Mapping[str, float]
"""`success_rate`, `ci_low` and `ci_high`, in [0, 1], and what they were counted from."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What evaluation needs of one episode. `reward` is the binary task reward, None when it was not judged."""

    task_id: str
    family: str
    level: int
    infeasible: bool
    reward: float | None
    failure: FailureKind | None = None

    @property
    def judged(self) -> bool:
        """False if the environment lost the episode."""
        return self.failure not in ENVIRONMENT_FAILURES

    @property
    def solved(self) -> bool:
        """True if it was judged and its task reward says success."""
        return self.judged and self.reward is not None and self.reward >= SOLVED


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two policies on the tasks they share. A task counts as solved if at least half of its episodes are.

    `only_first` and `only_second` are tasks that one policy alone solved; `p_value` is the exact McNemar test on them.
    `difference` is the mean over tasks of second - first in success, with its bootstrap interval.
    """

    tasks: int
    only_first: int
    only_second: int
    p_value: float
    difference: Difference


def summarise(
    policy: PolicyRef,
    split: Split,
    seed: int,
    results: Sequence[EpisodeResult],
    *,
    wall_seconds: float = 0.0,
    steps_per_second: float = 0.0,
    tokens_per_second: float = 0.0,
) -> EvalReport:
    """Report over all episodes; infeasible tasks, where giving up is right, form a family of their own.

    `per_task` holds 1 or 0 for each judged episode of a task. A family of which nothing was judged is shown with no
    episodes and the interval [0, 1].

    Raises: DataError if no episode was judged.
    """
    judged = [result for result in results if result.judged]
    if not judged:
        raise DataError(
            f"None of {len(results)} episodes could be judged, so {policy.version!r} has no success rate; "
            "look at the failures in the trajectory store and evaluate again."
        )
    families: dict[str, list[EpisodeResult]] = defaultdict(list)
    per_task: dict[str, list[float]] = defaultdict(list)
    for result in results:
        families[INFEASIBLE if result.infeasible else result.family].append(result)
    for result in judged:
        per_task[result.task_id].append(float(result.solved))
    total = _rates(judged)
    return EvalReport(
        policy=policy,
        split=split,
        seed=seed,
        episodes=int(total["episodes"]),
        solved=int(total["solved"]),
        env_errors=len(results) - len(judged),
        success_rate=total["success_rate"],
        ci_low=total["ci_low"],
        ci_high=total["ci_high"],
        by_family={name: _rates(members) for name, members in sorted(families.items())},
        per_task={task: tuple(outcomes) for task, outcomes in sorted(per_task.items())},
        wall_seconds=wall_seconds,
        steps_per_second=steps_per_second,
        tokens_per_second=tokens_per_second,
    )


def rates_of(report: EvalReport) -> Rates:
    """Success in all, with its interval."""
    return {name: getattr(report, name) for name in ("success_rate", "ci_low", "ci_high", "episodes", "solved")}


def _rates(results: Sequence[EpisodeResult]) -> dict[str, float]:
    return _rate(sum(result.solved for result in results), sum(result.judged for result in results))


def _pooled(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return _rate(*(int(sum(part[name] for part in parts)) for name in ("solved", "episodes")))


def _rate(solved: int, episodes: int) -> dict[str, float]:
    interval = wilson(solved, episodes)
    rate = solved / episodes if episodes else 0.0
    return {
        "episodes": episodes,
        "solved": solved,
        "success_rate": rate,
        "ci_low": interval.low,
        "ci_high": interval.high,
    }


def to_json(report: EvalReport) -> dict[str, Any]:
    """A JSON object; `policy` is the version, `policy_ref` the rest of the reference."""
    return {
        "success_rate": report.success_rate,
        "ci_low": report.ci_low,
        "ci_high": report.ci_high,
        "episodes": report.episodes,
        "solved": report.solved,
        "env_errors": report.env_errors,
        "by_family": {name: dict(rates) for name, rates in report.by_family.items()},
        "policy": report.policy.version,
        "seed": report.seed,
        "split": report.split,
        "policy_ref": {
            "uri": report.policy.uri,
            "parent": report.policy.parent,
            "fingerprint": report.policy.fingerprint,
        },
        "per_task": {task: list(outcomes) for task, outcomes in report.per_task.items()},
        "wall_seconds": report.wall_seconds,
        "steps_per_second": report.steps_per_second,
        "tokens_per_second": report.tokens_per_second,
    }


def from_json(data: Mapping[str, Any]) -> EvalReport:
    """The report that `to_json` wrote. Raises `DataError` that names what is missing."""
    names = {field.name for field in fields(EvalReport)}
    missing = sorted((names | {"policy_ref"}) - data.keys())
    if missing:
        raise DataError(f"The report lacks {', '.join(missing)}; write it anew with `flywheel eval --json`.")
    plain = {name: data[name] for name in names - {"policy", "per_task"}}
    per_task = {task: tuple(outcomes) for task, outcomes in data["per_task"].items()}
    return EvalReport(policy=PolicyRef(version=data["policy"], **data["policy_ref"]), per_task=per_task, **plain)


def pool(reports: Sequence[EvalReport]) -> EvalReport:
    """Several runs on one split as one report: episodes added up, task by task and family by family.

    Its intervals are over episodes; tasks that were played in every run make them too narrow. `compare` counts a task
    once, however often it was played.

    Raises: DataError if there is no report.
    """
    if not reports:
        raise DataError("There is no report to pool; evaluate at least one policy.")
    per_task: dict[str, tuple[float, ...]] = {}
    families: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for report in reports:
        for task, outcomes in report.per_task.items():
            per_task[task] = per_task.get(task, ()) + tuple(outcomes)
        for name, rates in report.by_family.items():
            families[name].append(rates)
    total = _pooled([{"solved": report.solved, "episodes": report.episodes} for report in reports])
    return replace(
        reports[0],
        episodes=int(total["episodes"]),
        solved=int(total["solved"]),
        env_errors=sum(report.env_errors for report in reports),
        success_rate=total["success_rate"],
        ci_low=total["ci_low"],
        ci_high=total["ci_high"],
        by_family={name: _pooled(parts) for name, parts in sorted(families.items())},
        per_task=per_task,
        wall_seconds=sum(report.wall_seconds for report in reports),
    )


def compare(first: EvalReport, second: EvalReport, *, tasks: Container[str] | None = None, seed: int = 0) -> Comparison:
    """Compare two reports on the tasks both judged, or on those of them in `tasks`. Raises `DataError` without any."""
    shared = sorted(first.per_task.keys() & second.per_task.keys())
    shared = shared if tasks is None else [task for task in shared if task in tasks]
    if not shared:
        raise DataError(
            f"The reports of {first.policy.version!r} and {second.policy.version!r} share no task; "
            "evaluate both on the same split with the same seed."
        )
    means = [[sum(r.per_task[task]) / len(r.per_task[task]) for task in shared] for r in (first, second)]
    pairs = [(a >= SOLVED, b >= SOLVED) for a, b in zip(*means, strict=True)]
    only_first, only_second = pairs.count((True, False)), pairs.count((False, True))
    p_value = mcnemar_exact(only_first, only_second)
    return Comparison(len(shared), only_first, only_second, p_value, paired_bootstrap(*means, seed=seed))
