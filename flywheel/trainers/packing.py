"""Documents of any length side by side in one row, without padding and without seeing each other.

Packing is silently wrong without 4-row position ids: with none or three, documents leak into each other. Row 0 counts
text positions and restarts at each document; rows 1-3 are the rotary (t, h, w). `document_lengths` reads the
borders back from row 0 and refuses anything else.

Shapes: N tokens of the row, K positions whose next token is trained on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from flywheel.errors import PackingError
from flywheel.modeling.positions import Grid, rope_positions
from flywheel.types import TrainingSample

FILLER = 0
"""Id that fills up lengths; any but that of an image."""


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
        """Those of the documents; what fills up lengths does not count."""
        return sum(len(sample.input_ids) for sample in self.samples)


def pack(
    samples: Sequence[TrainingSample], *, image_id: int, merge: int = 2, document: int = 1, bucket: int = 1
) -> PackedRow:
    """Lay documents side by side; those of one sample are one line of `document_K`.

    Compiled layers and cuDNN's kernels are made for one length each, so lengths may be rounded up: what follows the
    last token of a document sees it and is never seen by it.

    Args:
        document: each document is lengthened to a multiple of this many tokens.
        bucket: the row likewise, by a document of its own that nothing is trained on.
    Raises: PackingError when ids, mask, weights and images of a document disagree.
    """
    ids, positions, predict, offset = [], [], [], 0
    for sample in chain.from_iterable(sample.documents for sample in samples):
        check_sample(sample, image_id=image_id, merge=merge)
        ids_N = _lengthened(sample.input_ids, document)
        positions.append(_positions(ids_N, sample.image_grids, image_id, merge))
        predict.append(np.flatnonzero(sample.train_mask) - 1 + offset)
        ids.append(ids_N)
        offset += len(ids_N)
    if offset % bucket:
        ids.append(np.full(-offset % bucket, FILLER, np.int64))
        positions.append(_positions(ids[-1], (), image_id, merge))
    ids_N = np.concatenate(ids)
    predict_K = np.concatenate(predict)
    return PackedRow(
        ids_N=ids_N,
        position_ids_4N=np.concatenate(positions, 1),
        predict_K=predict_K,
        targets_K=ids_N[predict_K + 1],
        document_K=np.repeat(np.arange(len(samples)), [int(s.train_mask.sum()) for s in samples]),
        weights_K=np.concatenate([s.weights[s.train_mask] for s in samples]),
        logprobs_K=np.concatenate([s.logprobs[s.train_mask] for s in samples]),
        samples=tuple(samples),
    )


def check_sample(sample: TrainingSample, *, image_id: int, merge: int = 2) -> None:
    """Raises `PackingError` for a document that cannot be trained on."""
    name, n = sample.trajectory_id, len(sample.input_ids)
    if not n or {len(sample.train_mask), len(sample.weights), len(sample.logprobs)} != {n}:
        raise PackingError(f"Trajectory {name} is empty or its mask, weights or logprobs are of another length.")
    expected = sum(t * h * w for t, h, w in sample.image_grids) // merge**2
    if int((sample.input_ids == image_id).sum()) != expected or len(sample.images) != len(sample.image_grids):
        raise PackingError(f"Trajectory {name} does not hold one image for each placeholder.")
    if sample.train_mask[0]:
        raise PackingError(f"Trajectory {name} trains on its first token, which nothing predicts.")


def _lengthened(ids_N: np.ndarray, multiple: int) -> np.ndarray:
    return np.pad(ids_N, (0, -len(ids_N) % multiple), constant_values=FILLER)


def _positions(ids_N: np.ndarray, grids: Sequence[Grid], image_id: int, merge: int) -> np.ndarray:
    """(4, N): the count of tokens, then rotary (t, h, w)."""
    rope_3N, _ = rope_positions(ids_N, grids, image_id=image_id, merge=merge)
    return np.concatenate([np.arange(len(ids_N))[None], rope_3N])


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


def dealt(rows: Sequence[list[TrainingSample]], rank: int, world: int) -> list[tuple[list[TrainingSample], bool]]:
    """The rows of one of `world` processes, as many for each: sharded weights are gathered by all of them at once.

    Where rows run short the shortest document stands in. It comes with False: it must not count.
    """
    shortest = min((sample for row in rows for sample in row), key=lambda sample: len(sample.input_ids))
    return [*((row, True) for row in rows), *[([shortest], False)] * (-len(rows) % world)][rank::world]


def share_of(rows: Sequence[list[TrainingSample]], rank: int, world: int) -> list[list[TrainingSample]]:
    """The same for a loss that weighs tokens: what stands in has weight 0, so its gradient is an exact zero."""
    return [row if counts else [_silent(row[0])] for row, counts in dealt(rows, rank, world)]


def _silent(sample: TrainingSample) -> TrainingSample:
    return replace(sample, weights=np.zeros_like(sample.weights))
