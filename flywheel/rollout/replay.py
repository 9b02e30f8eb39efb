"""Experience replay: a success of earlier days joins a group that has none today.

A group that fails whole has no spread, hence no gradient. Two published rules say when a buffered success of the same
task joins it, and how:

    cookbook   every task reward is below 0.5                         appended, G + 1 rows     10 successes a task
    arpo       population std < .05 and mean < .2 of the task reward  replaces the first row    8 successes a task

Keeps both conditions, how the success joins, and the cookbook's look-up: the very task, then tasks of the same id
without its `_chunk` suffix. Drops ARPO's pretence that the present policy had sampled the row: rows keep the logprobs
of the policy that did, and the trainer corrects for it (`trainers/replayed.py`). Added: which of the buffered joins is
drawn from a seed, the oldest leaves a full buffer, and a buffer names stored trajectories instead of holding them.

Sources: arXiv:2505.16282 (ARPO); OSWorld VLM training cookbook, `replay_buffer.py`.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from flywheel.seeds import derive_seed

_CHUNK = re.compile(r"_chunk.*$")


@dataclass(frozen=True, slots=True)
class ReplayRule:
    """A success joins a group whose task rewards all lie below `below`, with a mean and a spread below the others."""

    joins: Literal["appended", "first"]
    size: int
    below: float
    mean: float
    std: float

    def fires(self, rewards_G: Sequence[float]) -> bool:
        """Whether a group of these task rewards takes a success in. Raises ValueError for an empty group."""
        if not len(rewards_G):
            raise ValueError("A group without rows has no rewards to judge.")
        rewards = np.asarray(rewards_G, np.float64)
        return bool(rewards.max() < self.below and rewards.mean() < self.mean and rewards.std() < self.std)


RULES: Mapping[str, ReplayRule] = {
    "cookbook": ReplayRule("appended", size=10, below=0.5, mean=np.inf, std=np.inf),
    "arpo": ReplayRule("first", size=8, below=np.inf, mean=0.2, std=0.05),
}


@dataclass(frozen=True, slots=True)
class Success:
    """A trajectory that solved its task, and where it is kept: a partition of the store, or a training set."""

    task_id: str
    source: str
    trajectory_id: str


class SuccessBuffer:
    """The newest successes of each task, at most `size` of them.

    Args:
        size: successes kept a task.
        seed: decides the draws.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self._pools: dict[str, list[Success]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(map(len, self._pools.values()))

    def add(self, success: Success) -> None:
        """Take one in; the oldest of a full pool goes. One that is there already stays where it is."""
        pool = self._pools[success.task_id]
        if success not in pool:
            pool.append(success)
            del pool[: -self._size]

    def draw(self, task_id: str, *scope: str | int) -> Success | None:
        """One success of the task, the same for the same scope and content; None where there is none."""
        pool = self._pools.get(task_id) or self._of_base(task_id)
        if not pool:
            return None
        random = np.random.default_rng(derive_seed(self._seed, "replay", *scope))
        return pool[random.integers(len(pool))]

    def state_dict(self) -> dict[str, Any]:
        """Every pool in order: what a resumed run needs."""
        return {"successes": [asdict(success) for pool in self._pools.values() for success in pool]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pools.clear()
        for fields in state["successes"]:
            self.add(Success(**fields))

    def _of_base(self, task_id: str) -> list[Success]:
        base = _CHUNK.sub("", task_id)
        alike = sorted(name for name in self._pools if _CHUNK.sub("", name) == base)
        return [success for name in alike for success in self._pools[name]]
