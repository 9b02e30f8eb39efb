"""Anchors: a name for what a screen shows, so that steps which stood before the same screen can be compared (GiGPO).

The same state is rarely the same pixels: a text cursor blinks. Thin upright lines are therefore erased, and what is
left is averaged over blocks and quantised before it is hashed.

Limits. Frames and rulers are thin upright lines too and tell nothing apart. A block cursor, a clock, a moved mouse
pointer or a lossy codec make another anchor: steps then share none, and GiGPO falls back to its episode part.

Legend: H, W pixels of a screen.
"""

import hashlib

import numpy as np

from flywheel.types import Screenshot

CURSOR_WIDTH = 2
"""Pixels; text cursors are one or two wide."""
CURSOR_HEIGHT = 12
"""Pixels; taller than the stem of any letter at 11 points, lower than a line of text."""
CONTRAST = 32
"""Grey levels by which a cursor differs from what is beside it."""
BLOCK, LEVELS = 4, 16
"""Side of an averaged block in pixels, and steps of grey: one letter changes a block by about 4 steps."""


def anchor(screen: Screenshot | None) -> str:
    """16 hex digits, equal for screens that show the same; "" where there is no screen."""
    if screen is None:
        return ""
    grey_HW = without_cursor(np.asarray(screen.image().convert("L"), np.int16))
    height, width = (side - side % BLOCK for side in grey_HW.shape)
    blocks = grey_HW[:height, :width].reshape(height // BLOCK, BLOCK, width // BLOCK, BLOCK).mean((1, 3))
    quantised = (blocks * LEVELS / 256).astype(np.uint8)
    return hashlib.sha256(repr(grey_HW.shape).encode() + quantised.tobytes()).hexdigest()[:16]


def without_cursor(grey_HW: np.ndarray) -> np.ndarray:
    """With thin upright lines painted over in the colour to their right; a cursor mostly stands at a text's end."""
    clean_HW = grey_HW.copy()
    for width in range(1, CURSOR_WIDTH + 1):
        left, right = grey_HW[:, :-width], grey_HW[:, width:]
        line = np.zeros(grey_HW.shape, bool)
        inside = np.abs(left - right) > CONTRAST
        line[:, 1:-width] = inside[:, 1:] & (np.abs(grey_HW[:, 1:-width] - grey_HW[:, : -width - 1]) > CONTRAST)
        for y, x in np.argwhere(_upright(line)):
            clean_HW[y, x : x + width] = grey_HW[y, x + width]
    return clean_HW


def _upright(line_HW: np.ndarray) -> np.ndarray:
    """Where marked pixels stand at least `CURSOR_HEIGHT` deep, bool (H, W)."""
    height = len(line_HW)
    if height < CURSOR_HEIGHT:
        return np.zeros_like(line_HW)
    windows = np.lib.stride_tricks.sliding_window_view(line_HW, CURSOR_HEIGHT, axis=0).all(-1)
    deep_HW = np.zeros_like(line_HW)
    for offset in range(CURSOR_HEIGHT):
        deep_HW[offset : offset + height - CURSOR_HEIGHT + 1] |= windows
    return deep_HW
