"""How training success goes, window by window: which state was best, and whether shaping runs ahead of success.

An evaluation is the mean over `rl.guards.window` updates of what was played for training: it costs nothing, and its
tasks change with practice. It decides what is gone back to, never what is reported.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flywheel.sections import GuardsConfig
from flywheel.trainers.guards import FLAT


class Evaluations:
    """Part of the trainer's state. `best` is the update whose state is worth going back to; 0 is the start.

    Episodes speak of the weights that played them, not of what the update then made of these. So a state becomes the
    best only when the next update's episodes, its own, have shown it to be sound.
    """

    def __init__(self, config: GuardsConfig) -> None:
        self._window, self._span = config.window, config.shaping_evaluations
        self._open: list[list[float]] = []
        self.success: list[float] = []
        self.reward: list[float] = []
        self.best, self._top = 0, -1.0
        self._candidate: int | None = None

    def add(self, success: float, reward: float) -> bool:
        """Take in an update's mean task success and mean shaped reward; whether it completed an evaluation."""
        self._open.append([success, reward])
        if len(self._open) < self._window:
            return False
        success, reward = np.mean(self._open, axis=0).tolist()
        self.success.append(success)
        self.reward.append(reward)
        self._open = []
        return True

    def propose(self, update: int) -> bool:
        """Whether this update completed an evaluation that beats all before it; its state is then to be kept."""
        if self._open or not self.success or self.success[-1] <= self._top:
            return False
        self._candidate, self._top = update, self.success[-1]
        return True

    def settle(self, sound: bool) -> None:
        """What was proposed is the best if it proved sound in the update after it, else forgotten."""
        if self._candidate is not None and sound:
            self.best = self._candidate
        self._candidate = None

    @property
    def gained(self) -> bool:
        """Whether the last evaluation is above the first."""
        return len(self.success) > 1 and self.success[-1] > self.success[0]

    @property
    def shaping_gain(self) -> float:
        """Rise of the shaped reward over the last `shaping_evaluations`, 0 where task success rose too or they are
        fewer."""
        if len(self.success) < self._span:
            return 0.0
        rise = self.reward[-1] - self.reward[-self._span]
        return rise if self.success[-1] - self.success[-self._span] <= FLAT else 0.0

    def state_dict(self) -> dict[str, Any]:
        best = {"best": self.best, "top": self._top, "candidate": self._candidate}
        return {"open": self._open, "success": self.success, "reward": self.reward, **best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._open, self.success, self.reward = (list(state[name]) for name in ("open", "success", "reward"))
        self.best, self._top, self._candidate = state["best"], state["top"], state["candidate"]
