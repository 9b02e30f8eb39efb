"""The trained tokens of a packed row as a padded table, as losses want them.

Shapes: K trained tokens of the row, B lines of the table (documents, or their steps), T the longest line.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flywheel.trainers.packing import PackedRow


class Grid:
    """Args:
    row: documents side by side.
    steps: for each document the step of each of its trained tokens; then a line is a step, else a document.
    """

    def __init__(self, row: PackedRow, steps: Sequence[np.ndarray] | None = None) -> None:
        line_K = row.document_K
        if steps is not None:
            joined_K = np.concatenate(steps)
            line_K = np.cumsum(np.diff(line_K, prepend=0).astype(bool) | np.diff(joined_K, prepend=0).astype(bool))
        counts = np.bincount(line_K)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        self._line_K = torch.from_numpy(line_K)
        self._column_K = torch.from_numpy(np.arange(len(line_K)) - starts)
        self._shape = (len(counts), int(counts.max()))
        self.mask_BT = self.spread(torch.ones(len(line_K), dtype=torch.bool))

    def spread(self, value_K: Tensor) -> Tensor:
        """Values of the trained tokens in their places, 0 elsewhere; gradient passes."""
        out_BT = value_K.new_zeros(self._shape)
        return out_BT.index_put((self._line_K, self._column_K), value_K)

    def join(self, parts: Sequence[np.ndarray], like: Tensor) -> Tensor:
        """The same for arrays given document by document, in the dtype and on the device of `like`."""
        return self.spread(torch.from_numpy(np.concatenate(parts)).to(like))
