"""Documents of any length side by side in one row, without padding and without seeing each other.

Packing is silently wrong without 4-row position ids: with none or three, documents leak into each other. Row 0 counts
text positions and restarts at each document; rows 1-3 are the rotary (t, h, w). `document_lengths` reads the
borders back from row 0 and refuses anything else.

Shapes: N tokens of the row, K positions whose next token is trained on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.errors import PackingError
from flywheel.modeling.positions import rope_positions
from flywheel.types import TrainingSample


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One row. `predict_K` are the positions whose logits are needed: each is one before its target."""

    ids_N: np.ndarray
    position_ids_4N: np.ndarray
    predict_K: np.ndarray
    targets_K: np.ndarray
    document_K: np.ndarray
    weights_K: np.ndarray
    logprobs_K: np.ndarray
    samples: tuple[TrainingSample, ...]

    @property
    def tokens(self) -> int:
        return len(self.ids_N)


def pack(samples: Sequence[TrainingSample], *, image_id: int, merge: int = 2) -> PackedRow:
    """Lay documents side by side. Raises `PackingError` when ids and images of a document disagree."""
    positions, predict, offset = [], [], 0
    for sample in samples:
        n = len(sample.input_ids)
        if not n or len(sample.train_mask) != n:
            raise PackingError(f"Trajectory {sample.trajectory_id} is empty or its mask is of another length.")
        expected = sum(t * h * w for t, h, w in sample.image_grids) // merge**2
        if int((sample.input_ids == image_id).sum()) != expected or len(sample.images) != len(sample.image_grids):
            raise PackingError(f"Trajectory {sample.trajectory_id} does not hold one image for each placeholder.")
        if sample.train_mask[0]:
            raise PackingError(f"Trajectory {sample.trajectory_id} trains on its first token, which nothing predicts.")
        rope_3N, _ = rope_positions(sample.input_ids, sample.image_grids, image_id=image_id, merge=merge)
        positions.append(np.concatenate([np.arange(n)[None], rope_3N]))
        predict.append(np.flatnonzero(sample.train_mask) - 1 + offset)
        offset += n
    ids_N = np.concatenate([sample.input_ids for sample in samples])
    predict_K = np.concatenate(predict)
    return PackedRow(
        ids_N=ids_N,
        position_ids_4N=np.concatenate(positions, 1),
        predict_K=predict_K,
        targets_K=ids_N[predict_K + 1],
        document_K=np.repeat(np.arange(len(samples)), [len(p) for p in predict]),
        weights_K=np.concatenate([s.weights[s.train_mask] for s in samples]),
        logprobs_K=np.concatenate([s.logprobs[s.train_mask] for s in samples]),
        samples=tuple(samples),
    )


def document_lengths(position_ids_4N: np.ndarray | None) -> list[int]:
    """Lengths of the documents of a packed row, from row 0 of its position ids."""
    if position_ids_4N is None or position_ids_4N.ndim != 2 or position_ids_4N.shape[0] != 4:
        shape = None if position_ids_4N is None else position_ids_4N.shape
        raise PackingError(f"A packed row needs position ids of shape (4, tokens), not {shape}; pack it with `pack`.")
    starts = np.flatnonzero(position_ids_4N[0] == 0)
    lengths = np.diff([*starts.tolist(), position_ids_4N.shape[1]])
    if (
        not len(starts)
        or starts[0] != 0
        or (np.concatenate([np.arange(n) for n in lengths]) != position_ids_4N[0]).any()
    ):
        raise PackingError("Row 0 of the position ids must count 0, 1, 2, ... and restart at each document.")
    return [int(n) for n in lengths]


def rows_of(samples: Sequence[TrainingSample], max_tokens: int) -> Iterator[list[TrainingSample]]:
    """Cut a batch into rows of at most `max_tokens` (a longer document gets a row of its own), in order."""
    row: list[TrainingSample] = []
    used = 0
    for sample in samples:
        if row and used + len(sample.input_ids) > max_tokens:
            yield row
            row, used = [], 0
        row.append(sample)
        used += len(sample.input_ids)
    if row:
        yield row
