"""Gradient norms: which steps must not be taken, judged before the optimiser moves anything.

A norm says whether a batch is sound only against those before it, so it is compared with their running median. The
clip cannot stand in for this: a gradient of the wrong direction is still of the wrong direction when it is short.
"""

import math
from typing import Any

import numpy as np

from flywheel.sections import GuardsConfig

MEMORY = 50
"""Norms of steps taken that the median is of."""
ENOUGH = 5
"""Norms from which a median says something; before that only what is not finite is refused."""
RECENT = 20
"""Steps in which skips are counted."""


class GradientWatch:
    """Admits or refuses each optimiser step; part of the trainer's state.

    Args:
        config: `grad_react`, the multiple of the median above which a step is refused.
    """

    def __init__(self, config: GuardsConfig) -> None:
        self._limit = config.grad_react
        self._norms: list[float] = []
        self._recent: list[bool] = []
        self._ratio = 0.0

    def admit(self, norm: float) -> bool:
        """Whether the step of a gradient with this 2-norm (before clipping) may be taken."""
        ratio = self._relative(norm)
        admitted = ratio <= self._limit
        self._ratio = max(self._ratio, ratio)
        self._recent = [*self._recent, admitted][-RECENT:]
        if admitted:
            self._norms = [*self._norms, norm][-MEMORY:]
        return admitted

    def _relative(self, norm: float) -> float:
        """Of the median; 1 while there is none, infinite where the norm is no number."""
        if not math.isfinite(norm):
            return math.inf
        median = float(np.median(self._norms)) if len(self._norms) >= ENOUGH else 0.0
        return norm / median if median else 1.0

    def take(self) -> dict[str, float]:
        """The largest multiple of the median since this was last asked, and the skips among the last `RECENT` steps."""
        ratio, self._ratio = self._ratio, 0.0
        return {"grad_norm_ratio": ratio, "recent_skips": float(self._recent.count(False))}

    def forgive(self) -> None:
        """Forget the skips: what led to them has been undone."""
        self._recent = []

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._norms, "recent": self._recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms, self._recent = list(state["norms"]), list(state["recent"])
