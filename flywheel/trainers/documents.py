"""Rows of a training set -> documents to train on."""

from typing import Any

import numpy as np

from flywheel.chat import Chat
from flywheel.errors import DataError
from flywheel.trainers.labels import IGNORE, sft_labels
from flywheel.types import TrainingSample


def sample_of(row: dict[str, Any], chat: Chat) -> TrainingSample:
    """One document. Ids as sampled where the row has them for this very vocabulary, else by the label rule.

    Masked turns (`turn_mask`) stay as context with weight 0.
    """
    flags = row.get("turn_mask") or None
    build = _recorded if _is_recorded(row, chat) else _from_messages
    ids, trained, grids = build(row, chat, flags)
    return TrainingSample(
        trajectory_id=row.get("trajectory_id") or "",
        group_id="",
        input_ids=ids,
        train_mask=trained,
        logprobs=np.zeros(len(ids), np.float32),
        weights=trained.astype(np.float32),
        images=tuple(row["images"]),
        image_grids=tuple(grids),
    )


def _is_recorded(row: dict[str, Any], chat: Chat) -> bool:
    """Whether the row has ids, and they say here what its messages say; those of another tokenizer would be noise."""
    prompts, completions = row.get("prompt_ids") or [], row.get("completion_ids") or []
    answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    whole = any(completions) and len(prompts) == len(completions)
    return whole and [chat.decode(ids) for ids in completions] == answers


def _from_messages(row: dict[str, Any], chat: Chat, flags: list[bool] | None) -> tuple[np.ndarray, np.ndarray, Any]:
    ids, grids = chat.conversation(row["messages"], [image.size for image in row["images"]])
    return ids, sft_labels(ids, **chat.label_ids, turn_flags=flags) != IGNORE, grids


def _recorded(row: dict[str, Any], chat: Chat, flags: list[bool] | None) -> tuple[np.ndarray, np.ndarray, Any]:
    grids = [chat.grid(image.size) for image in row["images"]]
    compact: list[int] = []
    trained: list[bool] = []
    turns = list(zip(row["prompt_ids"], row["completion_ids"], strict=True))
    flags = flags or [True] * len(turns)
    if len(flags) != len(turns):
        raise DataError(f"The conversation has {len(turns)} assistant turns but {len(flags)} flags; give one a turn.")
    for (prompt, completion), keep in zip(turns, flags, strict=True):
        compact += [*prompt, *completion]
        trained += [False] * len(prompt) + [bool(keep)] * len(completion)
    ids = chat.expand(compact, grids)
    mask = np.zeros(len(ids), bool)
    mask[ids != chat.image_id] = np.array(trained)[np.array(compact) != chat.image_id]
    return ids, mask, grids
