"""Hindsight for a self-teacher (SDPO): what a group has learnt of its task, put before the conversation.

    a trajectory                             its teacher is told
    another of whose group succeeded         that solution: its answers, as they were sampled
    that failed where no other succeeded     its own end: last screenshot, changes of the accessibility tree, errors
    that alone succeeded                     nothing: the row is masked

Keeps from the paper: solution before feedback, never a row's own solution, the response tokens untouched. Ours:
feedback with a picture, which the public code refuses; and the place, the end of the system turn, where the paper
appends to the question. There every distance between screen, task and answer stays what it was in training: before any
practice, a tiny policy's solved rows keep a mean log-likelihood of -16 instead of -25 (-1 without hindsight). Drops:
cutting the thinking out of the solution. Nobody looks at the screen after the last action, so the last screenshot is
the one before it. Source: arXiv:2601.20802.

Shapes: N tokens of a document, H inserted tokens.
"""

import difflib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from flywheel.chat import Chat, without_markup
from flywheel.errors import DataError
from flywheel.types import Screenshot, TrainingSample, Trajectory

SOLUTION = "\n[Correct Solution]\n"
FEEDBACK = "\n[Feedback from a Failed Attempt]\n"


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What is inserted: compact ids, with one placeholder for each of `images`."""

    kind: Literal["solution", "feedback"]
    ids: tuple[int, ...]
    images: tuple[Screenshot, ...] = ()


def hindsight_of(
    played: Sequence[Trajectory], chat: Chat, *, feedback: bool, accessibility_chars: int
) -> list[Hindsight | None]:
    """For each of the judged trajectories what its teacher is told, or None where there is nothing to tell.

    Args:
        played: whole groups, by `group_id`.
        feedback: tell failed trajectories without a solution how they ended.
        accessibility_chars: where the difference of accessibility trees is cut.
    """
    solved: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in sorted(played, key=lambda trajectory: (len(trajectory.turns), trajectory.id)):
        if trajectory.success:
            solved[trajectory.group_id].append(trajectory)
    told: list[Hindsight | None] = []
    for trajectory in played:
        others = [other for other in solved[trajectory.group_id] if other.id != trajectory.id]
        if others:
            # The shortest: least to read, and nothing superfluous to copy.
            told.append(solution([turn.completion_ids for turn in others[0].turns], chat))
        else:
            ended_badly = feedback and not trajectory.success
            told.append(feedback_on(trajectory, chat, accessibility_chars) if ended_badly else None)
    return told


def solution(answers: Sequence[Sequence[int]], chat: Chat) -> Hindsight:
    """The answers of a success line by line, in the ids that were sampled."""
    line = chat.tokenise("\n")
    ids = [*chat.tokenise(SOLUTION)]
    for answer in answers:
        cut = bool(answer) and answer[-1] == chat.end_id
        ids += [*(answer[:-1] if cut else answer), *line]
    return Hindsight("solution", tuple(ids[: -len(line)]))


def feedback_on(trajectory: Trajectory, chat: Chat, accessibility_chars: int) -> Hindsight | None:
    """How a failed trajectory ended; None where nothing was seen and nothing went wrong."""
    last = trajectory.turns[-1].observation.screenshot
    words = _words(trajectory, accessibility_chars)
    if last is None and not words:
        return None
    picture = chat.picture_ids if last else ()
    ids = (*chat.tokenise(FEEDBACK), *picture, *chat.tokenise(without_markup(words)))
    return Hindsight("feedback", ids, (last,) if last else ())


def _words(trajectory: Trajectory, accessibility_chars: int) -> str:
    changes = _tree_changes(trajectory)[:accessibility_chars]
    errors = [f"Turn {n}: {turn.error}" for n, turn in enumerate(trajectory.turns, 1) if turn.error]
    if trajectory.error:
        errors.append(trajectory.error)
    sections = {"[Changes of the Accessibility Tree]": changes, "[Errors]": "\n".join(errors)}
    return "\n".join(f"{title}\n{text}" for title, text in sections.items() if text)


def _tree_changes(trajectory: Trajectory) -> str:
    """Lines of the accessibility tree that went (-) and came (+) between the first look and the last."""
    first, last = (trajectory.turns[i].observation.accessibility_tree or "" for i in (0, -1))
    lines = difflib.unified_diff(first.splitlines(), last.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


def with_hindsight(sample: TrainingSample, told: Hindsight, chat: Chat) -> TrainingSample:
    """The document as its teacher reads it: `told` ends the system turn, all else is kept.

    Where a window cut the trajectory, only its first document is told.

    Raises `DataError` when no turn ends before the first trained token.
    """
    trained = np.flatnonzero(sample.train_mask)
    ends = np.flatnonzero(sample.input_ids[: trained[0] if len(trained) else 0] == chat.end_id)
    if not len(ends):
        raise DataError(
            f"Trajectory {sample.trajectory_id} has no turn before its first answer that could hold hindsight."
        )
    at = int(ends[0])
    grids = [chat.grid(image.size) for image in told.images]
    ids_H = chat.expand(told.ids, grids)
    looked_N = sample.input_ids[:at] == chat.image_id
    merged = chat.processor.image_processor.merge_size**2
    ends_of_images = np.cumsum([t * h * w // merged for t, h, w in sample.image_grids])
    image = int(np.searchsorted(ends_of_images, looked_N.sum(), side="right"))
    none_H = np.zeros(len(ids_H))
    return replace(
        sample,
        input_ids=np.insert(sample.input_ids, at, ids_H),
        train_mask=np.insert(sample.train_mask, at, none_H.astype(bool)),
        logprobs=np.insert(sample.logprobs, at, none_H),
        weights=np.insert(sample.weights, at, none_H),
        images=(*sample.images[:image], *told.images, *sample.images[image:]),
        image_grids=(*sample.image_grids[:image], *grids, *sample.image_grids[image:]),
        begins=tuple((token + len(ids_H), first + len(grids)) for token, first in sample.begins),
    )
