"""Three-dimensional rotary positions of Qwen3-VL, for whole documents and for deltas.

Text advances all of (t, h, w) together; an image lies at one t and spreads over h and w of its merged grid, and
the text after it continues from the largest of the three. Same numbers as the model's own `get_rope_index`.
"""

from collections.abc import Sequence

import numpy as np

Grid = tuple[int, int, int]


def rope_positions(
    ids: np.ndarray, grids: Sequence[Grid], *, image_id: int, merge: int = 2, start: int = 0
) -> tuple[np.ndarray, int]:
    """Positions of a (partial) document.

    Args:
        ids: expanded ids, shape (n,), all placeholders of an image consecutive.
        grids: (t, h, w) in patches, in order.
        start: position of the first id; what an earlier call returned.
    Returns: int64 positions (3, n), and the position of the id that would follow.
    """
    out_3N = np.empty((3, len(ids)), np.int64)
    position, at = start, 0
    remaining = iter(grids)
    places = np.flatnonzero(ids == image_id)
    done = 0
    while done < len(places):
        first = int(places[done])
        t, h, w = next(remaining)
        h, w = h // merge, w // merge
        out_3N[:, at:first] = np.arange(position, position + first - at)
        position += first - at
        grid = np.indices((t, h, w)).reshape(3, -1)
        out_3N[:, first : first + t * h * w] = grid + position
        position += max(h, w)
        at = first + t * h * w
        done += t * h * w
    out_3N[:, at:] = np.arange(position, position + len(ids) - at)
    return out_3N, position + len(ids) - at
