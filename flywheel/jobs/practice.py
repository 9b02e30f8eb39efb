"""Which tasks policy gradient practises: more often those of families that fail.

Even draws spend most of an update on groups that are solved whole and carry no gradient; drawing the hard families
alone forgets the others. `rl.focus` mixes the two: 0 is even, 1 follows the failures. What fails is known from the
rollouts of the iteration, and then from practice itself: a family that is being forgotten comes back.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flywheel.config import Config
from flywheel.errors import DataError
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
MEMORY = 0.8
"""Weight of what was known about a family's failures against an update that practised it."""


class Practice:
    """Draws tasks, and learns from what became of them.

    Args:
        config: `rl.families` to practise, and `rl.focus`.
        tasks: training tasks.
        failures: family -> failure rate to begin with.
        seed: decides the draws.

    Raises `DataError` when no task is of the configured families.
    """

    def __init__(self, config: Config, tasks: Sequence[Task], failures: Mapping[str, float], seed: int) -> None:
        self._tasks = [task for task in tasks if not config.rl.families or task.family in config.rl.families]
        if not self._tasks:
            raise DataError(f"No training task is of the families {', '.join(config.rl.families)} (rl.families).")
        families = sorted({task.family for task in self._tasks})
        self._family_of = np.array([families.index(task.family) for task in self._tasks])
        self._focus, self._seed = config.rl.focus, seed
        self.failures = {family: failures.get(family, UNKNOWN) for family in families}

    def draw(self, count: int, *scope: int) -> list[Task]:
        """`count` different tasks; the same for the same scope and failures."""
        random = np.random.default_rng(derive_seed(self._seed, "tasks", *scope))
        chosen = random.choice(len(self._tasks), min(count, len(self._tasks)), replace=False, p=self.probability)
        return [self._tasks[i] for i in chosen]

    @property
    def probability(self) -> np.ndarray:
        """Of each task to be drawn, (tasks,)."""
        # A family without failures keeps a trace of weight, or a set smaller than `count` could not be drawn whole.
        failing = np.array(list(self.failures.values())) + 1e-6
        share = (1 - self._focus) / len(failing) + self._focus * failing / failing.sum()
        weight = (share / np.bincount(self._family_of))[self._family_of]
        return np.asarray(weight / weight.sum())

    def learn(self, played: Sequence[Trajectory]) -> None:
        """Take in judged episodes of one update."""
        for family in self.failures:
            failed = [not trajectory.success for trajectory in played if trajectory.task.family == family]
            if failed:
                self.failures[family] = MEMORY * self.failures[family] + (1 - MEMORY) * float(np.mean(failed))

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs: the failure rates."""
        return dict(self.failures)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.failures = dict(state)


def failures_of(config: Config, store: TrajectoryStore, iteration: int) -> dict[str, float]:
    """Family -> share of failures among the judged rollouts of an iteration; empty where there are none."""
    with store.connect() as catalog:
        rows = catalog.execute(FAILURES, [config.experiment, iteration_name(iteration)]).fetchall()
    return {family: float(share) for family, share in rows}
