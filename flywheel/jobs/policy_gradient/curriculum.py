"""Curriculum: which training tasks practice may draw, and new ones around those that fail.

Three rules, each of which can be switched on alone:

    selection  only tasks that were both solved and failed before (ARPO: the others carry no gradient)
    ladder     a family begins at its easiest level; the next opens while success at every level below is high enough
    growth     a share of each update's tasks is made anew, of families and levels in proportion to how they fail

Keeps ARPO's selection on rollouts from before, and WebRL's idea of tasks that grow out of failures. Drops WebRL's
language model that writes tasks and the critic that filters them: the environment generates tasks of a given family and
level, solvable by construction. A level closes again when success below it is lost.

Sources: arXiv:2505.16282 (ARPO, task selection), arXiv:2411.02337 (WebRL, self-evolving curriculum).
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from flywheel.config import Config
from flywheel.errors import ConfigError, DataError
from flywheel.jobs.tasks import OFFLINE, generate
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.types import Task, Trajectory
from flywheel.workspace import iteration_name

Rung = tuple[str, int]
"""A family and one of its levels."""

MEMORY = 0.8
"""Weight of what was known about success and failures against an update that practised them."""

RUNGS = """
    SELECT family, level, avg(success::DOUBLE) FROM episodes
    WHERE experiment = ? AND partition = ? AND task_reward IS NOT NULL GROUP BY family, level ORDER BY family, level
"""
MIXED = """
    SELECT task_id FROM episodes
    WHERE experiment = ? AND partition IN (SELECT unnest(?)) AND task_reward IS NOT NULL
    GROUP BY task_id HAVING bool_or(success) AND NOT bool_and(success)
"""


class Ladder:
    """Success at each family and level, and the levels that are open.

    Args:
        rungs: every family and level that there are tasks of.
        success: what is known of them to begin with.
        opens_at: success from which the next level opens; 0 leaves all open.
    """

    def __init__(self, rungs: Iterable[Rung], success: Mapping[Rung, float], opens_at: float) -> None:
        self._rungs = sorted(set(rungs))
        self._opens_at = opens_at
        self.success = {rung: success[rung] for rung in self._rungs if rung in success}

    @property
    def open(self) -> list[Rung]:
        """Rungs below which every level of the family has been climbed, in order."""
        return [rung for rung in self._rungs if all(map(self._climbed, self._below(rung)))]

    def failing(self) -> dict[Rung, float]:
        """Open rung -> share of failures there; those that nobody has tried are left out."""
        return {rung: 1 - self.success[rung] for rung in self.open if rung in self.success}

    def learn(self, played: Sequence[Trajectory]) -> None:
        """Take in judged episodes of one update."""
        for rung in self._rungs:
            found = [t.success for t in played if (t.task.family, t.task.level) == rung]
            if found:
                share = float(np.mean(found))
                self.success[rung] = MEMORY * self.success.get(rung, share) + (1 - MEMORY) * share

    def state_dict(self) -> list[tuple[str, int, float]]:
        """What a resumed run needs."""
        return [(*rung, share) for rung, share in self.success.items()]

    def load_state_dict(self, state: Sequence[tuple[str, int, float]]) -> None:
        self.success = {(family, level): share for family, level, share in state}

    def _below(self, rung: Rung) -> list[Rung]:
        return [other for other in self._rungs if other[0] == rung[0] and other[1] < rung[1]]

    def _climbed(self, rung: Rung) -> bool:
        return not self._opens_at or self.success.get(rung, 0.0) >= self._opens_at


def grow(config: Config, failing: Mapping[Rung, float], count: int, seed: int) -> list[Task]:
    """`count` new training tasks, rungs drawn in proportion to their failures; none where nothing fails.

    The same for the same arguments. Their content puts them into the training split, so none is ever held out.

    Raises `ConfigError` when the tasks of the profile cannot be generated.
    """
    if config.tasks.source not in ("", OFFLINE):
        raise ConfigError(
            f"rl.grow needs tasks that can be generated, and those of {config.tasks.source} are files; set rl.grow=0."
        )
    rungs, shares = list(failing), np.array(list(failing.values()))
    if not count or not shares.any():
        return []
    chosen = np.random.default_rng(seed).choice(len(rungs), count, p=shares / shares.sum())
    made = []
    for number, index in enumerate(chosen):
        family, level = rungs[index]
        made += generate(config, "train", 1, derive_seed(seed, number), (family,), (level,))
    return list({task.id: task for task in made}.values())


def success_by_rung(config: Config, store: TrajectoryStore, iteration: int) -> dict[Rung, float]:
    """Success among the judged rollouts of an iteration; empty where there are none."""
    with store.connect() as catalog:
        rows = catalog.execute(RUNGS, [config.experiment, iteration_name(iteration)]).fetchall()
    return {(family, level): float(share) for family, level, share in rows}


def select_mixed(config: Config, store: TrajectoryStore, tasks: Sequence[Task], iteration: int) -> list[Task]:
    """Tasks that the rollouts up to this iteration both solved and failed. Raises `DataError` when there is none."""
    partitions = [iteration_name(number) for number in range(1, iteration + 1)]
    with store.connect() as catalog:
        mixed = {name for (name,) in catalog.execute(MIXED, [config.experiment, partitions]).fetchall()}
    chosen = [task for task in tasks if task.id in mixed]
    if not chosen:
        raise DataError(
            f"No training task was both solved and failed in rollouts up to {iteration_name(iteration)} "
            "(rl.select=mixed); roll out each task more often (rollout.samples), or set rl.select=all."
        )
    return chosen
