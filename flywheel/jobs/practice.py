"""Which tasks policy gradient practises: more often those of families that the loop's rollouts still fail.

Even draws spend most of an update on groups that are solved whole and carry no gradient; drawing the hard families
alone forgets the others. `rl.focus` mixes the two: 0 is even, 1 follows the failures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.config import Config
from flywheel.errors import DataError
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.types import Task
from flywheel.workspace import iteration_name

FAILURES = """
    SELECT family, 1 - avg(success::DOUBLE) FROM episodes
    WHERE experiment = ? AND partition = ? AND task_reward IS NOT NULL GROUP BY family
"""


@dataclass(frozen=True, slots=True)
class Practice:
    """Tasks, and the probability of each to be drawn."""

    tasks: Sequence[Task]
    probability: np.ndarray
    seed: int

    def draw(self, count: int, *scope: int) -> list[Task]:
        """`count` different tasks, the same for the same scope."""
        random = np.random.default_rng(derive_seed(self.seed, "tasks", *scope))
        some = int((self.probability > 0).sum())
        chosen = random.choice(len(self.tasks), min(count, some), replace=False, p=self.probability)
        return [self.tasks[i] for i in chosen]


def practice(config: Config, tasks: Sequence[Task], store: TrajectoryStore, iteration: int, seed: int) -> Practice:
    """Of the configured families, weighted by the failures among the rollouts of `iteration`.

    A family that was not played counts as failed half the time. Raises `DataError` when no task is left.
    """
    wanted = [task for task in tasks if not config.rl.families or task.family in config.rl.families]
    if not wanted:
        raise DataError(f"No training task is of the families {', '.join(config.rl.families)} (rl.families).")
    failures = _failures(config, store, iteration) if config.rl.focus else {}
    families = sorted({task.family for task in wanted})
    share = np.array([failures.get(family, 0.5) for family in families]) + 1e-9
    share = (1 - config.rl.focus) / len(families) + config.rl.focus * share / share.sum()
    sizes = {family: sum(task.family == family for task in wanted) for family in families}
    weight = {family: part / sizes[family] for family, part in zip(families, share, strict=True)}
    probability = np.array([weight[task.family] for task in wanted])
    return Practice(wanted, probability / probability.sum(), seed)


def _failures(config: Config, store: TrajectoryStore, iteration: int) -> dict[str, float]:
    """Family -> share of judged episodes that failed."""
    with store.connect() as catalog:
        rows = catalog.execute(FAILURES, [config.experiment, iteration_name(iteration)]).fetchall()
    return {family: float(share) for family, share in rows}
