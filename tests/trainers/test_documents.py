"""Rows of a set become documents: ids as sampled where there are any, the label rule where there are none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from flywheel.datasets.sets import FEATURES, load_rows, row_of, save_set
from flywheel.errors import DataError
from flywheel.modeling.policy import make_chat
from flywheel.modeling.processor import build_processor
from flywheel.modeling.tokenizer import build_tokenizer
from flywheel.trainers.documents import sample_of
from flywheel.trainers.packing import pack
from flywheel.types import Trajectory
from tests.tiny import Tiny, demonstrations, episodes, some_tasks

IDS = ("prompt_ids", "completion_ids")


def rows_through_disk(tiny: Tiny, played: list[Trajectory], folder: Path) -> list[dict[str, Any]]:
    save_set([row_of(trajectory, tiny.chat.words, "rollout") for trajectory in played], folder)
    return list(load_rows(folder))


def recorded(tiny: Tiny, trajectory: Trajectory) -> dict[str, Any]:
    """A demonstration with the ids that an engine would have recorded for the same text."""
    chat, turns = tiny.chat, []
    for number, turn in enumerate(trajectory.turns):
        prompt = (chat.next if number else chat.first)(trajectory.task, turn.observation)
        completion = (*chat.tokenise(turn.text), chat.end_id)
        turns.append(replace(turn, prompt_ids=prompt.ids, completion_ids=completion, image_grid=prompt.grid))
    row = row_of(replace(trajectory, turns=tuple(turns)), chat.words, "rollout")
    return row | {"images": [turn.observation.screenshot for turn in turns]}


def test_sampled_rows_keep_every_id(tiny: Tiny, tmp_path: Path) -> None:
    """Through the disk and back the document is the one that policy gradient makes of the trajectory."""
    played = episodes(tiny, some_tasks(3))
    for row, trajectory in zip(rows_through_disk(tiny, played, tmp_path / "set"), played, strict=True):
        document = sample_of(row | {"turn_mask": []}, tiny.chat)
        expected = tiny.chat.sample(trajectory)
        assert (document.input_ids == expected.input_ids).all()
        assert (document.train_mask == expected.train_mask).all()
        assert document.image_grids == expected.image_grids
        assert pack([document], image_id=tiny.chat.image_id).tokens == len(document.input_ids)


def test_turns_that_could_not_be_read_are_context(tiny: Tiny, tmp_path: Path) -> None:
    played = episodes(tiny, some_tasks(1))
    (row,) = rows_through_disk(tiny, played, tmp_path / "set")
    assert not any(row["turn_mask"])
    assert not sample_of(row, tiny.chat).train_mask.any()
    kept = sample_of(row | {"turn_mask": [False, True, False]}, tiny.chat)
    assert kept.input_ids[kept.train_mask].tolist() == list(played[0].turns[1].completion_ids)
    assert (kept.weights == kept.train_mask).all()


def test_messages_alone_give_the_same_document_by_the_label_rule(tiny: Tiny) -> None:
    """What the oracle wrote, once with ids and once as anybody would share it."""
    for trajectory in demonstrations(tiny, some_tasks(8)):
        row = recorded(tiny, trajectory)
        ours = sample_of(row, tiny.chat)
        shared = sample_of({"messages": row["messages"], "images": row["images"]}, tiny.chat)
        # The template ends the last line, which nobody says and nobody is trained on.
        assert ours.input_ids.tolist() == shared.input_ids[:-1].tolist()
        assert ours.train_mask.tolist() == shared.train_mask[:-1].tolist()
        assert not shared.train_mask[-1]
        assert ours.image_grids == shared.image_grids


@pytest.mark.parametrize("flags", [[True, False], [False, True], [0, 1]])
def test_masked_turns_agree_too(tiny: Tiny, flags: list[Any]) -> None:
    trajectory = next(t for t in demonstrations(tiny, some_tasks(8)) if len(t.turns) == 2)
    row = recorded(tiny, trajectory) | {"turn_mask": flags}
    ours = sample_of(row, tiny.chat)
    shared = sample_of({name: value for name, value in row.items() if name not in IDS}, tiny.chat)
    assert ours.train_mask.tolist() == shared.train_mask[:-1].tolist()
    assert 0 < ours.train_mask.sum() < sample_of(row | {"turn_mask": []}, tiny.chat).train_mask.sum()


def test_a_set_of_others_trains(tiny: Tiny, tmp_path: Path) -> None:
    """Messages and images, no other column."""
    (trajectory,) = demonstrations(tiny, some_tasks(1))
    row = row_of(trajectory, tiny.chat.words, "shared")
    names = ("messages", "images")
    features = datasets.Features({name: FEATURES[name] for name in names})
    datasets.Dataset.from_dict({name: [row[name]] for name in names}, features=features).save_to_disk(tmp_path / "set")
    (loaded,) = load_rows(tmp_path / "set")
    document = sample_of(loaded, tiny.chat)
    said = tiny.chat.decode(document.input_ids[document.train_mask].tolist())
    assert said == "<|im_end|>".join(turn.text for turn in trajectory.turns)


def test_ids_of_another_tokenizer_are_not_taken_for_ours(tiny: Tiny) -> None:
    """They would be noise that trains without an error."""
    (trajectory,) = demonstrations(tiny, some_tasks(1))
    row = recorded(tiny, trajectory)
    corpus = [*(turn.text for turn in trajectory.turns), "assistant", "user", "system"]
    other = make_chat(tiny.config, build_processor(build_tokenizer(corpus * 20, [], 300)))
    document = sample_of(row, other)
    said = other.decode(document.input_ids[document.train_mask].tolist())
    assert said == "<|im_end|>".join(turn.text for turn in trajectory.turns)


def test_a_row_that_lost_an_image_is_refused(tiny: Tiny) -> None:
    trajectory = next(t for t in demonstrations(tiny, some_tasks(8)) if len(t.turns) == 2)
    for row in (recorded(tiny, trajectory), {**recorded(tiny, trajectory), "completion_ids": None}):
        with pytest.raises(DataError, match="2 image placeholders but 1 images"):
            sample_of(row | {"images": row["images"][:1]}, tiny.chat)


def test_flags_that_match_no_turns_are_refused(tiny: Tiny) -> None:
    row = recorded(tiny, demonstrations(tiny, some_tasks(1))[0])
    for broken in (row, {name: value for name, value in row.items() if name not in IDS}):
        with pytest.raises(DataError, match="assistant turns but 9 flags"):
            sample_of(broken | {"turn_mask": [True] * 9}, tiny.chat)


def test_a_document_has_no_logprobs_of_its_own(tiny: Tiny) -> None:
    document = sample_of(recorded(tiny, demonstrations(tiny, some_tasks(1))[0]), tiny.chat)
    assert document.logprobs.dtype == np.float32
    assert not document.logprobs.any()
