"""How many rollouts a task gets, and how long: fewer and shorter ones where it is mastered.

A task that nearly always succeeds tells little; one that never took more than three turns needs no fifteen to fail.

    rollouts  all up to a success rate of .6, from there on evenly down to 2 at a rate of 1
    turns     at most as many as the longest success so far

Keeps: both rules. Drops: the paper's fixed steps of the count. Source: DART-GUI arXiv:2509.23866.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flywheel.rollout.episode import EpisodeSpec
from flywheel.types import Trajectory

MASTERED = 0.6
"""Success rate above which a task gets fewer rollouts."""
FEWEST = 2
"""Rollouts that can still differ."""
MEMORY = 0.5
"""Weight of what was known of a task against what an update showed."""


class Allotment:
    """What is known of each task by its id: success rate, and turns of its longest success."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._longest: dict[str, int] = {}

    def rollouts(self, task_id: str, group: int) -> int:
        """Of the `group` rollouts that are planned, how many are played."""
        left = (1 - self._rates.get(task_id, 0.0)) / (1 - MASTERED)
        return min(group, max(FEWEST, math.ceil(group * left)))

    def turns(self, task_id: str, limit: int) -> int:
        return min(limit, self._longest.get(task_id, limit))

    def cut(self, specs: Sequence[EpisodeSpec]) -> list[EpisodeSpec]:
        """What is left of planned groups."""
        groups: dict[str, list[EpisodeSpec]] = {}
        for spec in specs:
            groups.setdefault(spec.group_id, []).append(spec)
        return [
            replace(spec, max_turns=self.turns(spec.task.id, spec.max_turns))
            for group in groups.values()
            for spec in group[: self.rollouts(group[0].task.id, len(group))]
        ]

    def learn(self, judged: Sequence[Trajectory]) -> None:
        """Take in the judged episodes of one update."""
        outcomes: dict[str, list[bool]] = {}
        for trajectory in judged:
            task = trajectory.task.id
            outcomes.setdefault(task, []).append(trajectory.success)
            if trajectory.success:
                self._longest[task] = max(self._longest.get(task, 0), len(trajectory.turns))
        for task, successes in outcomes.items():
            rate = sum(successes) / len(successes)
            self._rates[task] = MEMORY * self._rates.get(task, rate) + (1 - MEMORY) * rate

    def state_dict(self) -> dict[str, Any]:
        return {"rates": dict(self._rates), "longest": dict(self._longest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rates, self._longest = dict(state["rates"]), dict(state["longest"])
