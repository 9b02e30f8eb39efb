"""Trained tokens of a packed row as a padded table, as losses and aggregation want them.

Shapes: K trained tokens, B documents of the row, T the longest of them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flywheel.trainers.packing import PackedRow


class Grid:
    """The trained tokens of a packed row as a padded (B, T) table, one line a document."""

    def __init__(self, row: PackedRow) -> None:
        counts = np.bincount(row.document_K)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        self._document_K = torch.from_numpy(row.document_K)
        self._column_K = torch.from_numpy(np.arange(len(row.document_K)) - starts)
        self._shape = (len(counts), int(counts.max()))
        self.mask_BT = torch.zeros(self._shape, dtype=torch.bool)
        self.mask_BT[self._document_K, self._column_K] = True

    def spread(self, value_K: Tensor) -> Tensor:
        """Values of the trained tokens in their places, 0 elsewhere; gradient passes."""
        out_BT = value_K.new_zeros(self._shape)
        return out_BT.index_put((self._document_K, self._column_K), value_K)

    def join(self, parts: Sequence[np.ndarray], like: Tensor) -> Tensor:
        """The same for arrays given document by document, in the dtype and on the device of `like`."""
        return self.spread(torch.from_numpy(np.concatenate(parts)).to(like))
