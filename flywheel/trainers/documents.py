"""Rows of a training set -> documents to train on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flywheel.chat import PICTURE, Chat
from flywheel.errors import DataError
from flywheel.trainers.labels import IGNORE, sft_labels
from flywheel.types import TrainingSample
from flywheel.window import Layout

Message = dict[str, str]


def sample_of(row: dict[str, Any], chat: Chat) -> TrainingSample:
    """A conversation to train on: ids as sampled where the row has them for this very vocabulary, else by the label
    rule and cut to the prompt's window.

    Masked turns (`turn_mask`) stay as context with weight 0.
    """
    flags = row.get("turn_mask") or None
    laid = (_recorded if _is_recorded(row, chat) else _from_messages)(row, chat, flags)
    images, grids = row["images"], [chat.grid(image.size) for image in row["images"]]
    return TrainingSample(
        trajectory_id=row.get("trajectory_id") or "",
        group_id="",
        input_ids=laid.ids_N,
        train_mask=laid.answered_N,
        logprobs=np.zeros(len(laid.ids_N), np.float32),
        weights=laid.answered_N.astype(np.float32),
        images=tuple(images[n] for n in laid.pictures),
        image_grids=tuple(grids[n] for n in laid.pictures),
        begins=laid.begins,
    )


def _is_recorded(row: dict[str, Any], chat: Chat) -> bool:
    """Whether the row has ids, and they say here what its messages say; those of another tokenizer would be noise."""
    prompts, completions = row.get("prompt_ids") or [], row.get("completion_ids") or []
    answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    whole = any(completions) and len(prompts) == len(completions)
    return whole and [chat.decode(ids) for ids in completions] == answers


def _recorded(row: dict[str, Any], chat: Chat, flags: list[bool] | None) -> Layout:
    grids = [chat.grid(image.size) for image in row["images"]]
    completions = row["completion_ids"]
    flags = flags or [True] * len(completions)
    if len(flags) != len(completions):
        raise DataError(
            f"The conversation has {len(completions)} assistant turns but {len(flags)} flags; give one a turn."
        )
    laid = chat.lay(row["prompt_ids"], completions, grids, [_pictures(turn) for turn in _turns(row["messages"])])
    trained_N = laid.answered_N.copy()
    trained_N[laid.answered_N] = np.repeat(np.array(flags, bool), [len(ids) for ids in completions])
    return replace(laid, answered_N=trained_N)


def _from_messages(row: dict[str, Any], chat: Chat, flags: list[bool] | None) -> Layout:
    """By the label rule: turns that an earlier document has trained are context in those after it."""
    ids: list[np.ndarray] = []
    trained: list[np.ndarray] = []
    pictures: list[int] = []
    begins: list[tuple[int, int]] = []
    system, turns = _system(row["messages"]), _turns(row["messages"])
    shown = [_pictures(turn) for turn in turns]
    sizes = [image.size for image in row["images"]]
    answers = sum(turn[-1]["role"] == "assistant" for turn in turns)
    flags = [True] * answers if flags is None else list(flags)
    if len(flags) != answers:
        raise DataError(f"The conversation has {answers} assistant turns but {len(flags)} flags; give one a turn.")
    for start, first, stop in _documents(shown, chat):
        if ids:
            begins.append((sum(len(ids_N) for ids_N in ids), len(pictures)))
        from_, to = sum(shown[:start]), sum(shown[:stop]) if stop < len(turns) else len(sizes)
        messages = [*system, *(message for turn in turns[start:stop] for message in turn)]
        ids_N, _ = chat.conversation(messages, sizes[from_:to])
        own = [False] * (first - start) + flags[first:stop]
        ids.append(ids_N)
        trained.append(sft_labels(ids_N, **chat.label_ids, turn_flags=own) != IGNORE)
        pictures += range(from_, to)
    return Layout(np.concatenate(ids), np.concatenate(trained), tuple(pictures), tuple(begins))


def _documents(shown: Sequence[int], chat: Chat) -> Iterator[tuple[int, int, int]]:
    """(first turn held, first turn trained, one past the last) of each document that the window makes of the turns."""
    start = first = 0
    for turn in range(1, len(shown)):
        moved = chat.words.window.start(shown[: turn + 1], start)
        if moved != start:
            yield start, first, turn
            start, first = moved, turn
    yield start, first, len(shown)


def _system(messages: Sequence[Message]) -> list[Message]:
    """What stands before the first turn, and stays when the window is cut."""
    return [message for message in messages[:1] if message["role"] == "system"]


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages up to and with each answer; the last turn may lack its answer."""
    turns: list[list[Message]] = [[]]
    for message in messages[len(_system(messages)) :]:
        turns[-1].append(message)
        if message["role"] == "assistant":
            turns.append([])
    return turns if turns[-1] else turns[:-1]


def _pictures(turn: Sequence[Message]) -> int:
    return sum(message["content"].count(PICTURE) for message in turn if message["role"] != "assistant")
