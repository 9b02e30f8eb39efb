"""A window with hysteresis: the same prompts in rollout and training, and every answer trained exactly once."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.chat import Answer, Chat, Words
from flywheel.datasets.sets import row_of
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.rollout.groups import plan, play
from flywheel.trainers.algorithms import algorithm
from flywheel.trainers.credit import Rollout, credit
from flywheel.trainers.documents import sample_of
from flywheel.trainers.packing import document_lengths, pack
from flywheel.types import Sampling, Trajectory, Turn
from flywheel.window import EVERYTHING, Window
from tests.rollout.test_local import looks
from tests.tiny import Tiny, desktop, episodes, some_tasks


def windowed(chat: Chat, window: Window) -> Chat:
    """The same words to the same tokenizer, another window."""
    words = Words(chat.space, ("task", "last_result"), window=window)
    return Chat(chat.processor, words, chat.model_size)


def starts(images: list[int], window: Window) -> list[int]:
    found, start = [], 0
    for turn in range(len(images)):
        start = window.start(images[: turn + 1], start)
        found.append(start)
    return found


def test_a_prompt_grows_and_is_then_cut() -> None:
    assert starts([1] * 9, Window(2, 1)) == [0, 0, 0, 2, 2, 4, 4, 6, 6]
    assert starts([1] * 5, Window(1, 0)) == [0, 1, 2, 3, 4]
    assert starts([1] * 5, EVERYTHING) == [0] * 5
    assert starts([0] * 5, Window(1, 0)) == [0] * 5
    assert starts([1, 0, 0, 1, 0, 1], Window(1, 0)) == [0, 0, 0, 1, 1, 4]


def test_slack_saves_more_than_half_of_the_encodings() -> None:
    """Screenshots encoded over 30 turns: a cut encodes all that is kept, any other turn its own."""

    def encoded(window: Window) -> int:
        found = starts([1] * 30, window)
        return sum(1 if turn == 0 or found[turn] == found[turn - 1] else turn + 1 - found[turn] for turn in range(30))

    assert (encoded(Window(4, 0)), encoded(Window(4, 4)), encoded(EVERYTHING)) == (108, 45, 30)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 5))
def test_a_prompt_never_holds_more_and_never_goes_back(images: list[int], size: int, slack: int) -> None:
    found = starts(images, Window(size, slack))
    assert found == sorted(found)
    for turn, start in enumerate(found):
        assert sum(images[start : turn + 1]) <= size + slack
        assert start <= turn
        if turn and start != found[turn - 1]:
            assert sum(images[start : turn + 1]) == size


# --- documents ------------------------------------------------------------------------------------------------


def talk(tiny: Tiny, window: Window, answers: list[list[int]], pictures: list[bool], cuts: list[bool]) -> Trajectory:
    """A conversation as an engine that obeys the window records it."""
    chat, (task,) = windowed(tiny.chat, window), some_tasks(1)
    pairs = zip(looks(len(answers)), pictures, strict=True)
    seen = [look if shown else replace(look, screenshot=None) for look, shown in pairs]
    turns: list[Turn] = []
    said: list[Answer] = []
    start = 0
    for number, (ids, cut) in enumerate(zip(answers, cuts, strict=True)):
        begun = start
        start = chat.words.window.start([int(shown) for shown in pictures[: number + 1]], start)
        if not number:
            prompt = chat.first(task, seen[0])
        elif start == begun:
            prompt = chat.next(task, seen[number], cut=said[-1].cut)
        else:
            prompt = chat.again(task, seen[start : number + 1], said[start:])
        completion = tuple(ids) if cut else (*ids, chat.end_id)
        said.append(Answer(completion, cut))
        logprobs = tuple(-0.5 - number - 0.01 * n for n in range(len(completion)))
        turns.append(Turn(seen[number], "", None, prompt.ids, completion, logprobs, prompt.grid))
    ended = episodes(tiny, [task])[0]
    return replace(ended, turns=tuple(turns))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_answer_is_trained_exactly_once(tiny: Tiny, data: st.DataObject) -> None:
    """Whatever the window: the trained tokens are those that were sampled, in order, each with its own logprob."""
    count = data.draw(st.integers(1, 9))
    window = Window(data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3)))
    reserved = {*tiny.chat.forbidden_ids, tiny.chat.end_id}
    word = st.lists(st.integers(700, 900).filter(lambda token: token not in reserved), min_size=1, max_size=4)
    answers = data.draw(st.lists(word, min_size=count, max_size=count))
    pictures, cuts = (data.draw(st.lists(st.booleans(), min_size=count, max_size=count)) for _ in range(2))
    trajectory = talk(tiny, window, answers, pictures, cuts)
    sample = tiny.chat.sample(trajectory)
    sampled = [token for turn in trajectory.turns for token in turn.completion_ids]
    recorded = [logprob for turn in trajectory.turns for logprob in turn.logprobs]
    assert sample.input_ids[sample.train_mask].tolist() == sampled
    assert sample.logprobs[sample.train_mask] == pytest.approx(recorded)
    assert not sample.logprobs[~sample.train_mask].any()
    most = max(len(document.images) for document in sample.documents)
    assert most <= (window.size + window.slack if window.size else count)
    assert sum(len(document.input_ids) for document in sample.documents) == len(sample.input_ids)
    row = pack([sample], image_id=tiny.chat.image_id)
    assert document_lengths(row.position_ids_4N) == [len(document.input_ids) for document in sample.documents]
    assert row.targets_K.tolist() == sampled
    assert set(row.document_K.tolist()) == {0}


def test_a_window_that_holds_the_episode_changes_nothing(tiny: Tiny) -> None:
    given = ([[700 + n] for n in range(6)], [True] * 6, [False] * 6)
    one, other = (tiny.chat.sample(talk(tiny, window, *given)) for window in (EVERYTHING, Window(2, 4)))
    assert one.input_ids.tolist() == other.input_ids.tolist()
    assert one.begins == other.begins == ()
    assert [image.sha256 for image in one.images] == [image.sha256 for image in other.images]
    cut = tiny.chat.sample(talk(tiny, Window(2, 3), *given))
    assert [len(document.images) for document in cut.documents] == [5, 2]


def test_documents_of_one_trajectory_do_not_see_each_other(tiny: Tiny) -> None:
    """Packed together they score as alone; a trajectory that is cut in three still counts once in its group."""
    given = ([[700 + n, 720] for n in range(6)], [True] * 6, [False] * 6)
    sample = tiny.chat.sample(talk(tiny, Window(1, 1), *given))
    policy, image_id = tiny.fresh(), tiny.chat.image_id
    assert len(sample.documents) == 3
    with torch.no_grad():
        together = policy.logprobs(pack([sample], image_id=image_id)).numpy()
        alone = [policy.logprobs(pack([one], image_id=image_id)).numpy() for one in sample.documents]
    assert together == pytest.approx(np.concatenate(alone), abs=1e-5)
    played = episodes(tiny, some_tasks(1), samples=3)
    samples = [replace(sample, group_id="g"), *(replace(tiny.chat.sample(t), group_id="g") for t in played[1:])]
    rows = [Rollout(t, s, reward) for t, s, reward in zip(played, samples, (1.0, 0.0, 0.0), strict=True)]
    advantages = [one.advantage for one in credit(algorithm("dr_grpo"), rows, horizon=48)]
    assert advantages == pytest.approx([2 / 3, -1 / 3, -1 / 3])


# --- the engine -----------------------------------------------------------------------------------------------


def rolled_out(tiny: Tiny, window: Window, turns: int = 7) -> tuple[Chat, list[Trajectory]]:
    """Episodes of the untrained policy side by side, of different lengths, some answers cut."""
    chat = windowed(tiny.chat, window)
    agent = LocalAgent(tiny.agent().model, chat, tiny.policy)
    specs = plan(tiny.config, some_tasks(3), partition="p", samples=2, temperature=1.0, max_turns=turns)
    specs = [replace(spec, max_turns=turns - n % 3) for n, spec in enumerate(specs)]
    found: list[Trajectory] = []
    asyncio.run(play(specs, agent, chat.space, desktop, concurrency=6, on_trajectory=found.append))
    return chat, found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of a policy that babbles go on past three unreadable answers."""
    monkeypatch.setattr("flywheel.rollout.episode.UNPARSED_LIMIT", 99)


@pytest.mark.usefixtures("patient")
def test_logprobs_after_a_cut_are_those_of_the_training_forward_pass(tiny: Tiny) -> None:
    chat, played = rolled_out(tiny, Window(2, 1))
    samples = [chat.sample(trajectory) for trajectory in played]
    assert max(len(sample.documents) for sample in samples) >= 3
    row = pack(samples, image_id=chat.image_id)
    with torch.no_grad():
        trained = tiny.fresh().logprobs(row).numpy()
    assert len(trained) > 150
    assert np.abs(trained - row.logprobs_K).max() < 1e-4


@pytest.mark.usefixtures("patient")
def test_recomputed_prompts_are_the_recorded_ones(tiny: Tiny) -> None:
    """From the stored observations and answers alone, turn by turn."""
    chat, played = rolled_out(tiny, Window(2, 1))
    for trajectory in played:
        start, said = 0, [Answer(t.completion_ids, t.finish_reason == "length") for t in trajectory.turns]
        seen = [turn.observation for turn in trajectory.turns]
        for number, turn in enumerate(trajectory.turns):
            begun, start = start, chat.words.window.start([1] * (number + 1), start)
            if not number:
                prompt = chat.first(trajectory.task, seen[0])
            elif start == begun:
                prompt = chat.next(trajectory.task, seen[number], cut=said[number - 1].cut)
            else:
                prompt = chat.again(trajectory.task, seen[start : number + 1], said[start:number])
            assert prompt.ids == turn.prompt_ids
            assert len(prompt.pictures) == sum(token == chat.image_id for token in turn.prompt_ids)


@pytest.mark.usefixtures("patient")
def test_short_episodes_are_the_same_under_a_window(tiny: Tiny) -> None:
    (_, one), (_, other) = rolled_out(tiny, EVERYTHING, 4), rolled_out(tiny, Window(2, 2), 4)
    assert [t.turns[-1].completion_ids for t in one] == [t.turns[-1].completion_ids for t in other]


# --- rows of training sets ------------------------------------------------------------------------------------


def demonstrated(tiny: Tiny) -> tuple[Trajectory, dict[str, Any]]:
    """The longest of some scripted episodes, and its row."""
    found: list[Trajectory] = []
    tasks = some_tasks(12, families=("two_step", "dialog"), levels=(2,))
    specs = plan(tiny.config, tasks, partition="shown", samples=1, temperature=0.0, max_turns=16)
    agent = ScriptedAgent(tiny.chat.space)
    asyncio.run(play(specs, agent, tiny.chat.space, desktop, concurrency=1, on_trajectory=found.append))
    longest = max(found, key=lambda trajectory: len(trajectory.turns))
    screens = [turn.observation.screenshot for turn in longest.turns]
    return longest, row_of(longest, tiny.chat.words, "demonstration") | {"images": screens}


def test_messages_are_cut_as_a_rollout_would_be(tiny: Tiny) -> None:
    """The prompts of a demonstration are those that the policy will meet when it plays."""
    trajectory, row = demonstrated(tiny)
    assert len(trajectory.turns) >= 3
    chat = windowed(tiny.chat, Window(1, 1))
    sample, whole = sample_of(row, chat), sample_of(row, tiny.chat)
    turns: list[Turn] = []
    said: list[Answer] = []
    start = 0
    seen = [turn.observation for turn in trajectory.turns]
    for number, turn in enumerate(trajectory.turns):
        begun, start = start, chat.words.window.start([1] * (number + 1), start)
        if start != begun:
            prompt = chat.again(trajectory.task, seen[start : number + 1], said[start:])
        elif number:
            prompt = chat.next(trajectory.task, seen[number])
        else:
            prompt = chat.first(trajectory.task, seen[0])
        ids = (*chat.tokenise(turn.text), chat.end_id)
        said.append(Answer(ids, cut=False))
        turns.append(replace(turn, prompt_ids=prompt.ids, completion_ids=ids, image_grid=prompt.grid))
    expected = chat.sample(replace(trajectory, turns=tuple(turns)))
    assert len(sample.documents) == len(expected.documents) > 1
    for ours, theirs in zip(sample.documents, expected.documents, strict=True):
        # The template closes its last turn with a newline that no policy says.
        assert ours.input_ids[: len(theirs.input_ids)].tolist() == theirs.input_ids.tolist()
        assert ours.train_mask[: len(theirs.input_ids)].tolist() == theirs.train_mask.tolist()
        assert [image.sha256 for image in ours.images] == [image.sha256 for image in theirs.images]
    assert whole.begins == ()
    assert sample.train_mask.sum() == whole.train_mask.sum()


def test_masked_turns_stay_masked_in_whichever_document_they_are(tiny: Tiny) -> None:
    trajectory, row = demonstrated(tiny)
    chat = windowed(tiny.chat, Window(1, 0))
    flags = [number % 2 == 0 for number in range(len(trajectory.turns))]
    sample = sample_of(row | {"turn_mask": flags}, chat)
    assert len(sample.documents) == len(flags)
    assert [bool(document.train_mask.any()) for document in sample.documents] == flags


@pytest.mark.usefixtures("patient")
def test_a_recorded_row_keeps_the_documents_of_its_rollout(tiny: Tiny) -> None:
    """Whatever window is set when it is trained on."""
    chat, played = rolled_out(tiny, Window(2, 1))
    for trajectory in played:
        screens = [turn.observation.screenshot for turn in trajectory.turns]
        row = row_of(trajectory, chat.words, "rollout") | {"images": screens, "turn_mask": []}
        for reader in (chat, tiny.chat):
            sample, expected = sample_of(row, reader), chat.sample(trajectory)
            assert sample.input_ids.tolist() == expected.input_ids.tolist()
            assert sample.train_mask.tolist() == expected.train_mask.tolist()
            assert sample.begins == expected.begins
            assert [image.sha256 for image in sample.images] == [image.sha256 for image in expected.images]


def test_sampling_is_not_disturbed_by_who_is_cut(tiny: Tiny) -> None:
    """One session is at its first turn while another begins anew in the same wave."""
    chat = windowed(tiny.chat, Window(1, 0))
    (task, other), seen = some_tasks(2), looks(3)

    async def both(late: bool) -> list[tuple[int, ...]]:
        agent = LocalAgent(tiny.agent().model, chat, tiny.policy)
        session = await agent.open(task, Sampling(1.0, max_tokens=5, seed=1))
        said = [(await session.act(look)).completion_ids for look in seen[:2]]
        if late:
            joining = await agent.open(other, Sampling(1.0, max_tokens=5, seed=2))
            mine, _ = await asyncio.gather(session.act(seen[2]), joining.act(seen[0]))
            await joining.close()
        else:
            mine = await session.act(seen[2])
        await session.close()
        return [*said, mine.completion_ids]

    assert asyncio.run(both(late=True)) == asyncio.run(both(late=False))
