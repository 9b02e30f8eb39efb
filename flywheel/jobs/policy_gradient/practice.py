"""Which tasks policy gradient practises: more often those of families that fail.

Even draws spend most of an update on groups that are solved whole and carry no gradient; drawing the hard families
alone forgets the others. `rl.focus` mixes the two: 0 is even, 1 follows the failures. What fails is known from the
rollouts of the iteration, and then from practice itself: a family that is being forgotten comes back. What may be drawn
at all is up to the curriculum (`curriculum.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flywheel.config import Config
from flywheel.errors import DataError
from flywheel.jobs.policy_gradient.curriculum import MEMORY, Ladder, Rung, grow, select_mixed, success_by_rung
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.types import Task, Trajectory
from flywheel.workspace import iteration_name

FAILURES = """
    SELECT family, 1 - avg(success::DOUBLE) FROM episodes
    WHERE experiment = ? AND partition = ? AND task_reward IS NOT NULL GROUP BY family
"""
UNKNOWN = 0.5
"""Failure rate that a family is given before any of its episodes was judged."""


class Practice:
    """Draws tasks, and learns from what became of them.

    Args:
        config: `rl.families` to practise, `rl.focus`, `rl.open_levels`, `rl.grow`.
        tasks: training tasks.
        failures: family -> failure rate to begin with.
        seed: decides the draws.
        rungs: family and level -> success to begin with.
        apart: tasks that are not to be practised, also where new ones are made.

    Raises `DataError` when no task is of the configured families.
    """

    def __init__(
        self,
        config: Config,
        tasks: Sequence[Task],
        failures: Mapping[str, float],
        seed: int,
        rungs: Mapping[Rung, float] | None = None,
        apart: Sequence[Task] = (),
    ) -> None:
        self._tasks = [task for task in tasks if not config.rl.families or task.family in config.rl.families]
        if not self._tasks:
            raise DataError(f"No training task is of the families {', '.join(config.rl.families)} (rl.families).")
        families = sorted({task.family for task in self._tasks})
        self._family_of = np.array([families.index(task.family) for task in self._tasks])
        self._config, self._seed = config, seed
        self._apart = {task.id for task in apart}
        self.failures = {family: failures.get(family, UNKNOWN) for family in families}
        self.ladder = Ladder(map(_rung, self._tasks), rungs or {}, config.rl.open_levels)

    def draw(self, count: int, *scope: int) -> list[Task]:
        """At most `count` different tasks; the same for the same scope and what is known."""
        grown = self._grown(round(self._config.rl.grow * count), *scope)
        probability = self.probability
        random = np.random.default_rng(derive_seed(self._seed, "tasks", *scope))
        wanted = min(count - len(grown), int(np.count_nonzero(probability)))
        chosen = random.choice(len(self._tasks), wanted, replace=False, p=probability)
        return [self._tasks[i] for i in chosen] + grown

    @property
    def probability(self) -> np.ndarray:
        """Of each task to be drawn, (tasks,); 0 where its level is not open."""
        # A family without failures keeps a trace of weight, or a set smaller than `count` could not be drawn whole.
        failing = np.array(list(self.failures.values())) + 1e-6
        focus = self._config.rl.focus
        share = (1 - focus) / len(failing) + focus * failing / failing.sum()
        rungs = set(self.ladder.open)
        is_open = np.array([_rung(task) in rungs for task in self._tasks])
        weight = is_open * (share / np.bincount(self._family_of[is_open]))[self._family_of]
        return np.asarray(weight / weight.sum())

    def learn(self, played: Sequence[Trajectory]) -> None:
        """Take in judged episodes of one update."""
        for family in self.failures:
            failed = [not trajectory.success for trajectory in played if trajectory.task.family == family]
            if failed:
                self.failures[family] = MEMORY * self.failures[family] + (1 - MEMORY) * float(np.mean(failed))
        self.ladder.learn(played)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the failure rates, and success by level."""
        return {"failures": dict(self.failures), "ladder": self.ladder.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.failures = dict(state["failures"])
        self.ladder.load_state_dict(state["ladder"])

    def _grown(self, count: int, *scope: int) -> list[Task]:
        """New tasks around failures that are not among the known ones."""
        if not count:
            return []
        known = self._apart | {task.id for task in self._tasks}
        made = grow(self._config, self.ladder.failing(), count, derive_seed(self._seed, "grown", *scope))
        return [task for task in made if task.id not in known]


def make_practice(
    config: Config,
    store: TrajectoryStore,
    tasks: Sequence[Task],
    iteration: int,
    seed: int,
    apart: Sequence[Task] = (),
) -> Practice:
    """Practice as the rollouts of an iteration suggest it. Raises `DataError` when no task is left to practise."""
    if config.rl.select == "mixed":
        tasks = select_mixed(config, store, tasks, iteration)
    rungs = success_by_rung(config, store, iteration)
    return Practice(config, tasks, failures_of(config, store, iteration), seed, rungs, apart)


def failures_of(config: Config, store: TrajectoryStore, iteration: int) -> dict[str, float]:
    """Family -> share of failures among the judged rollouts of an iteration; empty where there are none."""
    with store.connect() as catalog:
        rows = catalog.execute(FAILURES, [config.experiment, iteration_name(iteration)]).fetchall()
    return {family: float(share) for family, share in rows}


def _rung(task: Task) -> Rung:
    return task.family, task.level
