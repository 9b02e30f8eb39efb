"""Guards of policy gradient: the figures of an update in, a verdict out. Nothing here touches a model.

Each guard is a row of one table: a figure, how far it may go, and what is asked for when it goes further. What is asked
for is carried out by the job (`jobs.policy_gradient.reactions`), save for what cannot wait: a step of a wild gradient
is refused before it is taken (`trainers.gradients`), and episodes that the environment lost never enter a batch.

A guard of a noisy figure looks at the mean of the last `window` updates, and only once there are so many. After it has
asked for something it starts to count afresh, so that its reaction has time to show.

A policy that learns grows certain: reward is bought with entropy (arXiv:2505.22617). So entropy, and what else may
move with learning, counts only while success does not rise.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flywheel.sections import GuardsConfig

Reaction = Literal[
    "skip_step", "exclude_rows", "resample", "correct", "cap_turns", "cut_shaping", "raise_clip", "add_kl",
    "double_kl", "move_reference", "restore_best", "halve_lr", "sft_round", "pause",
]  # fmt: skip
"""What a guard may ask for, in the order in which it is carried out."""

Level = Literal["ok", "warn", "react"]
DEAD_UPDATES = 3
"""Updates in a row without groups that differ after which training pauses."""
FLAT = 0.02
"""Rise of task success that still counts as none: half a standard error of a window of 1000 episodes at 50%."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One row of the table.

    Args:
        metric: name of the figure among those of an update; a guard whose figure is missing says nothing.
        bad: the side of the thresholds on which it speaks.
        warn, react: thresholds; None where that level does not exist.
        on_warn, on_react: what is asked for at each level.
        updates: the figure is its mean over so many updates.
        relative: to its start, which is its mean over the first `updates` updates.
        rise: thresholds are at least so many times the start: what a policy came with is not what training did to it.
        unless_rising: it says nothing while success rises.
        patience: updates in a row beyond `react` before it asks for anything.
        advice: what a person can do when the run pauses for it.
    """

    name: str
    metric: str
    bad: Literal["above", "below"]
    warn: float | None
    react: float | None
    on_warn: tuple[Reaction, ...] = ()
    on_react: tuple[Reaction, ...] = ()
    updates: int = 1
    relative: bool = False
    rise: float = 0.0
    unless_rising: bool = False
    patience: int = 1
    advice: str = ""

    def level(self, value: float, start: float) -> Level:
        """A figure that is no number is as bad as can be."""
        if self._beyond(value, self.limit("react", start)):
            return "react"
        return "warn" if self._beyond(value, self.limit("warn", start)) else "ok"

    def limit(self, level: Level, start: float) -> float | None:
        """The threshold of a level, after a start."""
        threshold = self.react if level == "react" else self.warn
        return threshold if threshold is None or not self.rise else max(threshold, self.rise * start)

    def _beyond(self, value: float, threshold: float | None) -> bool:
        if threshold is None:
            return False
        return math.isnan(value) or (value > threshold if self.bad == "above" else value < threshold)

    def worse(self, one: float, other: float) -> float:
        """Of two figures the one further on the bad side."""
        return max(one, other) if self.bad == "above" else min(one, other)


FALLING: tuple[Reaction, ...] = ("raise_clip", "add_kl", "halve_lr")
"""Against a policy that explores less and less."""


def guards_of(c: GuardsConfig) -> tuple[Guard, ...]:
    """The table, with thresholds as configured.

    Sources: Entropulse arXiv:2508.14040; clip-higher and resampling DAPO arXiv:2503.14476; engine mismatch
    fengyao.notion.site/off-policy-rl.
    """
    return (
        Guard("entropy", "sampled_entropy", "below", c.entropy_warn, c.entropy_react, (), FALLING,
              updates=c.window, relative=True, unless_rising=True),
        Guard("entropy_collapse", "sampled_entropy", "below", None, c.entropy_collapse, (),
              ("restore_best", "sft_round"), updates=c.window, relative=True, unless_rising=True,
              advice="lower rl.lr or raise rl.entropy"),
        Guard("distinct_actions", "distinct_actions", "below", None, c.distinct_actions, (), FALLING,
              updates=c.window),
        Guard("grad_norm", "grad_norm_ratio", "above", c.grad_warn, c.grad_react, (), ("skip_step",)),
        Guard("grad_skips", "recent_skips", "above", 0, c.grad_skips, (), ("restore_best", "halve_lr"),
              advice="lower rl.lr or look at the episodes that the last updates trained on"),
        Guard("zero_variance", "zero_variance_groups", "above", c.zero_variance_warn, c.zero_variance_react,
              ("resample",), ("pause",), patience=DEAD_UPDATES,
              advice="turn the flywheel again, or practise tasks of which some succeed (rl.families, env.levels)"),
        Guard("ref_kl", "ref_kl", "above", c.ref_kl_warn, c.ref_kl_react, ("double_kl",), ("move_reference",)),
        Guard("mismatch", "mean_abs_dlogp", "above", c.mismatch_warn, c.mismatch_react, ("correct",), ("pause",),
              advice="check that the engine has the trainer's weights, temperature and dtype (flywheel doctor)"),
        Guard("truncated", "truncated", "above", None, c.truncated, (), ("cap_turns",), updates=c.window, rise=c.rise),
        Guard("unparsed", "unparsed", "above", None, c.unparsed, (), ("sft_round",), updates=c.window, rise=c.rise,
              unless_rising=True),
        Guard("repeated", "repeated", "above", None, c.repeated, (), ("pause",), updates=c.window, rise=c.rise,
              unless_rising=True, advice="train longer by supervision first"),
        Guard("shaping", "shaping_gain", "above", None, c.shaping_gain, (), ("cut_shaping",)),
        Guard("env_errors", "env_errors", "above", c.env_errors, None, ("exclude_rows",)),
    )  # fmt: skip


@dataclass(slots=True)
class Record:
    """What one guard has seen; `recent` are raw figures, `start` their first mean."""

    recent: list[float] = field(default_factory=list)
    start: float | None = None
    last: float | None = None
    worst: float | None = None
    warned: int = 0
    reacted: int = 0
    streak: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A guard beyond a threshold after one update; `asks` is empty where it only warns."""

    guard: Guard
    level: Level
    value: float
    limit: float
    asks: tuple[Reaction, ...]

    def __str__(self) -> str:
        return f"{self.guard.name} is {self.value:.3g}, {self.guard.bad} {self.limit:.3g}"


class Guards:
    """The table and what its rows have seen; part of the trainer's state."""

    def __init__(self, table: tuple[Guard, ...]) -> None:
        self.table = table
        self.records = {guard.name: Record() for guard in table}
        self.success: list[float] = []

    def judge(self, metrics: Mapping[str, float]) -> list[Finding]:
        """Take in the figures of one update; every guard that is beyond a threshold, in the order of the table."""
        if "success" in metrics:
            self.success.append(metrics["success"])
        found = (self._judge(guard, metrics[guard.metric]) for guard in self.table if guard.metric in metrics)
        return [finding for finding in found if finding is not None]

    def _judge(self, guard: Guard, raw: float) -> Finding | None:
        record = self.records[guard.name]
        value = _smoothed(guard, record, raw)
        if value is None:
            return None
        record.last = value
        record.worst = value if record.worst is None else guard.worse(record.worst, value)
        start = record.start or 0.0
        level = guard.level(value, start)
        if level != "ok" and guard.unless_rising and self._rising(guard.updates):
            level = "ok"
        record.warned += level == "warn"
        record.streak = record.streak + 1 if level == "react" else 0
        if level == "ok":
            return None
        asks = guard.on_warn
        if level == "react" and record.streak >= guard.patience:
            asks = guard.on_react
            record.reacted += 1
            record.streak, record.recent = 0, []
        elif guard.warn is not None:
            level = "warn"
        return Finding(guard, level, value, guard.limit(level, start) or 0.0, asks)

    def _rising(self, updates: int) -> bool:
        """Whether the last so many updates succeeded more often than those before them."""
        now, before = self.success[-updates:], self.success[-2 * updates : -updates]
        return bool(before) and math.fsum(now) / len(now) > math.fsum(before) / len(before) + FLAT

    def rows(self) -> list[dict[str, Any]]:
        """The table as it stands, for a report: thresholds, last and worst figure, counts."""
        rows = []
        for guard in self.table:
            record = self.records[guard.name]
            counts = {name: getattr(record, name) for name in ("last", "worst", "warned", "reacted")}
            rows.append({"guard": guard.name, "bad": guard.bad, "warn": guard.warn, "react": guard.react, **counts})
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {"success": self.success, "records": {name: asdict(record) for name, record in self.records.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.success = list(state["success"])
        self.records = {name: Record(**state["records"][name]) for name in self.records}


def _smoothed(guard: Guard, record: Record, raw: float) -> float | None:
    """The figure that is judged; None while there are too few."""
    record.recent = [*record.recent, raw][-guard.updates :]
    if len(record.recent) < guard.updates:
        return None
    mean = math.fsum(record.recent) / len(record.recent)
    if record.start is None:
        record.start = mean
    if not guard.relative:
        return mean
    return mean / record.start if record.start else 1.0
