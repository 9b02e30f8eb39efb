"""Hindsight: who is told what, and that nothing but the system turn grows."""

from dataclasses import replace

import numpy as np
import pytest

from flywheel.errors import DataError
from flywheel.trainers.hindsight import (
    FEEDBACK,
    SOLUTION,
    Hindsight,
    feedback_on,
    hindsight_of,
    solution,
    with_hindsight,
)
from flywheel.trainers.packing import pack
from flywheel.types import Observation, Trajectory
from tests.tiny import Tiny, episodes, some_tasks


@pytest.fixture(scope="module")
def group(tiny: Tiny) -> list[Trajectory]:
    """Four episodes of one task, by a policy that babbles; judged as a test sees fit."""
    return episodes(tiny, some_tasks(1), samples=4)


def judged(group: list[Trajectory], *rewards: float) -> list[Trajectory]:
    return [replace(trajectory, task_reward=reward) for trajectory, reward in zip(group, rewards, strict=True)]


def answers(trajectory: Trajectory) -> list[tuple[int, ...]]:
    return [turn.completion_ids for turn in trajectory.turns]


def told(tiny: Tiny, played: list[Trajectory], feedback: bool = True) -> list[Hindsight | None]:
    return hindsight_of(played, tiny.chat, feedback=feedback, accessibility_chars=200)


def test_everybody_is_told_the_shortest_solution_but_nobody_their_own(tiny: Tiny, group: list[Trajectory]) -> None:
    played = judged(group, 1.0, 0.0, 1.0, 0.0)
    played[2] = replace(played[2], turns=played[2].turns[:1])
    long, short = (solution(answers(played[n]), tiny.chat) for n in (0, 2))
    assert told(tiny, played) == [short, short, long, short]


def test_a_lone_success_is_told_nothing(tiny: Tiny, group: list[Trajectory]) -> None:
    first, *others = told(tiny, judged(group, 1.0, 0.0, 0.0, 0.0))
    assert first is None
    assert {hindsight.kind for hindsight in others if hindsight} == {"solution"}


def test_solutions_of_other_groups_are_of_no_use(tiny: Tiny, group: list[Trajectory]) -> None:
    played = judged(group, 1.0, 1.0, 0.0, 0.0)
    played = [replace(t, group_id="other") if t.success else t for t in played]
    assert [hindsight and hindsight.kind for hindsight in told(tiny, played)] == 2 * ["solution"] + 2 * ["feedback"]
    assert told(tiny, played, feedback=False)[2:] == [None, None]


def test_a_solution_is_its_answers_as_they_were_sampled(tiny: Tiny, group: list[Trajectory]) -> None:
    chat = tiny.chat
    ids = list(chat.tokenise(SOLUTION))
    for turn in group[0].turns:
        ids += [*(i for i in turn.completion_ids if i != chat.end_id), *chat.tokenise("\n")]
    assert solution(answers(group[0]), chat) == Hindsight("solution", tuple(ids[:-1]))


def test_feedback_shows_the_last_screen_what_changed_on_the_tree_and_the_errors(
    tiny: Tiny, group: list[Trajectory]
) -> None:
    first, last = group[0].turns[0], group[0].turns[-1]
    seen = Observation(last.observation.screenshot, "button\tSave\nlabel\t<|im_end|>")
    start = Observation(first.observation.screenshot, "button\tSave\nbutton\tOpen")
    failed = replace(
        group[0],
        turns=(replace(first, observation=start, error=None), replace(last, observation=seen, error="Not a button.")),
        error="The engine stopped.",
    )
    hindsight = feedback_on(failed, tiny.chat, 200)
    assert hindsight is not None
    assert hindsight.images == (last.observation.screenshot,)
    text = tiny.chat.processor.tokenizer.decode(list(hindsight.ids))
    assert text.startswith(FEEDBACK + "<|vision_start|><|image_pad|><|vision_end|>")
    assert "-button\tOpen\n+label\t‹|im_end|>" in text
    assert "Turn 2: Not a button.\nThe engine stopped." in text
    assert "Save" not in text
    assert hindsight.ids.count(tiny.chat.image_id) == 1


def test_a_failure_that_showed_nothing_and_said_nothing_teaches_nothing(tiny: Tiny, group: list[Trajectory]) -> None:
    blind = [replace(turn, observation=Observation(None), error=None) for turn in group[0].turns]
    assert feedback_on(replace(group[0], turns=tuple(blind)), tiny.chat, 200) is None


@pytest.mark.parametrize("kind", ["solution", "feedback"])
def test_only_the_system_turn_grows(tiny: Tiny, group: list[Trajectory], kind: str) -> None:
    chat, trajectory = tiny.chat, group[0]
    given = solution(answers(group[1]), chat) if kind == "solution" else feedback_on(trajectory, chat, 200)
    assert given is not None
    before = chat.sample(trajectory)
    after = with_hindsight(before, given, chat)
    inserted = chat.expand(given.ids, [chat.grid(image.size) for image in given.images])
    at = int(np.flatnonzero(before.input_ids == chat.end_id)[0])
    whole = np.concatenate([before.input_ids[:at], inserted, before.input_ids[at:]])
    assert np.array_equal(after.input_ids, whole)
    assert np.array_equal(after.input_ids[after.train_mask], before.input_ids[before.train_mask])
    assert np.array_equal(after.logprobs[after.train_mask], before.logprobs[before.train_mask])
    assert after.weights.sum() == before.weights.sum()
    assert after.images == (*given.images, *before.images)
    row = pack([after], image_id=chat.image_id)
    assert np.array_equal(row.targets_K, pack([before], image_id=chat.image_id).targets_K)


def test_a_picture_goes_between_those_around_it(tiny: Tiny, group: list[Trajectory]) -> None:
    """As in a document that opens with a picture: a window of an episode may."""
    chat = tiny.chat
    sample = chat.sample(group[0])
    picture = chat.expand(chat.picture_ids, sample.image_grids[:1])
    opened = replace(
        sample,
        input_ids=np.concatenate([picture, sample.input_ids]),
        **{n: np.concatenate([np.zeros(len(picture)), getattr(sample, n)]) for n in ("logprobs", "weights")},
        train_mask=np.concatenate([np.zeros(len(picture), bool), sample.train_mask]),
        images=(group[1].turns[-1].observation.screenshot, *sample.images),
        image_grids=(sample.image_grids[0], *sample.image_grids),
    )
    given = feedback_on(group[2], chat, 200)
    assert given is not None
    assert with_hindsight(opened, given, chat).images == (opened.images[0], *given.images, *opened.images[1:])


def test_a_document_without_turns_is_refused(tiny: Tiny, group: list[Trajectory]) -> None:
    sample = tiny.chat.sample(group[0])
    bare = replace(sample, input_ids=np.where(sample.input_ids == tiny.chat.end_id, 0, sample.input_ids))
    with pytest.raises(DataError, match="no turn before its first answer"):
        with_hindsight(bare, Hindsight("solution", (1,)), tiny.chat)
