"""Which tokens of a conversation are learned from: the bodies of assistant turns and the id that closes them.

A turn starts only at the three ids `<|im_start|> assistant \\n`. Looking for the bare word "assistant" would supervise
user text that happens to contain it, and the newline after `<|im_end|>` belongs to the template, not to the model.
A turn that is cut off before its `<|im_end|>` is context only: its end is not where the model would have ended.

Legend: N ids of one conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.errors import DataError

IGNORE = -100


@dataclass(frozen=True, slots=True)
class Span:
    """Ids [start, stop) of one assistant turn: its body and, if it is closed, its `<|im_end|>`."""

    start: int
    stop: int
    closed: bool


def assistant_spans(
    ids: Sequence[int] | np.ndarray, im_start: int, assistant: int, newline: int, im_end: int
) -> list[Span]:
    """Every assistant turn in order, also those cut off by the end of the ids or by the next `<|im_start|>`."""
    ids_N = np.asarray(ids, np.int64)
    header_N = (ids_N[:-2] == im_start) & (ids_N[1:-1] == assistant) & (ids_N[2:] == newline)
    stops = np.flatnonzero((ids_N == im_end) | (ids_N == im_start))
    spans = []
    for start in (np.flatnonzero(header_N) + 3).tolist():
        after = stops[np.searchsorted(stops, start) :]
        stop = int(after[0]) if len(after) else len(ids_N)
        closed = stop < len(ids_N) and int(ids_N[stop]) == im_end
        spans.append(Span(start, stop + closed, closed))
    return spans


def sft_labels(
    ids: Sequence[int] | np.ndarray,
    im_start: int,
    assistant: int,
    newline: int,
    im_end: int,
    turn_flags: Sequence[bool | int] | None = None,
) -> np.ndarray:
    """Labels, int64 (N,): the id itself where it is learned, -100 elsewhere; not shifted.

    Args:
        im_start, assistant, newline, im_end: the ids that delimit turns.
        turn_flags: one for each assistant turn, cut off ones included; 0 keeps the turn as context and masks it.
    Raises: DataError if the flags do not match the turns.
    """
    ids_N = np.asarray(ids, np.int64)
    spans = assistant_spans(ids_N, im_start, assistant, newline, im_end)
    flags = [True] * len(spans) if turn_flags is None else list(turn_flags)
    if len(flags) != len(spans):
        raise DataError(f"The conversation has {len(spans)} assistant turns but {len(flags)} flags; give one a turn.")
    labels_N = np.full(len(ids_N), IGNORE, np.int64)
    for span, flag in zip(spans, flags, strict=True):
        if flag and span.closed:
            labels_N[span.start : span.stop] = ids_N[span.start : span.stop]
    return labels_N
