"""How much of a long conversation a prompt holds, and what documents that leaves to train on.

A prompt that holds every screenshot grows without bound. A window that slides by one turn changes every prompt from its
start: no engine's cache and no training document then live longer than a turn, and every turn encodes its whole window
anew. With hysteresis a prompt grows to N + s screenshots and is then cut to the newest N; over 30 turns with N = s = 4
that encodes 45 screenshots instead of 108. Rollout, training and evaluation use the same rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Window:
    """A prompt grows to `size + slack` screenshots and is then cut to the newest `size`; size 0 keeps everything."""

    size: int = 0
    slack: int = 0

    def start(self, images: Sequence[int], start: int) -> int:
        """First turn that the newest prompt holds.

        Args:
            images: how many each turn so far shows, the newest last.
            start: first turn that the prompt before it held.
        """
        if not self.size or sum(images[start:]) <= self.size + self.slack:
            return start
        fitting = int(np.searchsorted(np.cumsum(images[::-1]), self.size, side="right"))
        return len(images) - max(fitting, 1)


EVERYTHING = Window()


@dataclass(frozen=True, slots=True)
class Layout:
    """A conversation as model ids (N,): `answered_N` is True on completions where they were sampled.

    `pictures` are numbers of the conversation's pictures in the order of their placeholders; `begins` is as in
    `TrainingSample`.
    """

    ids_N: np.ndarray
    answered_N: np.ndarray
    pictures: tuple[int, ...]
    begins: tuple[tuple[int, int], ...]
