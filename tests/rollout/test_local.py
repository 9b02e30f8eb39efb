"""The local engine: what it records is what a trainer computes, whoever else was in the batch."""

import asyncio
import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flywheel.errors import AgentError
from flywheel.rollout.agents.base import Completion
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.agents.wave import WaveCache, inverse_transform, nucleus, widths_alike
from flywheel.rollout.groups import plan, play
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import pack
from flywheel.types import Observation, Sampling, Screenshot, TrainingSample
from tests.tiny import Tiny, converse, desktop, some_tasks

TASKS = some_tasks(6)


def looks(count: int, seed: int = 0) -> list[Observation]:
    """Random screens: far apart for the vision tower."""
    random = np.random.default_rng(seed)
    screens = [random.integers(0, 256, (128, 160, 3), dtype=np.uint8) for _ in range(count)]
    return [Observation(Screenshot.from_array(screen)) for screen in screens]


def crowd(agent: LocalAgent, samplings: list[Sampling], turns: int = 3) -> list[list[Completion]]:
    """Sessions side by side, each with its own task and its own screens."""

    async def all_of_them() -> list[list[Completion]]:
        talks = [
            converse(agent, TASKS[i % len(TASKS)], sampling, looks(turns, i)) for i, sampling in enumerate(samplings)
        ]
        return await asyncio.gather(*talks)

    return asyncio.run(all_of_them())


def sample_of(tiny: Tiny, talk: list[Completion], seen: list[Observation]) -> TrainingSample:
    ids, mask, logprobs = [], [], []
    for completion in talk:
        prompt = tiny.chat.expand(completion.prompt_ids, [completion.image_grid] if completion.image_grid else [])
        ids += [*prompt.tolist(), *completion.completion_ids]
        mask += [False] * len(prompt) + [True] * len(completion.completion_ids)
        logprobs += [0.0] * len(prompt) + list(completion.logprobs)
    return TrainingSample(
        trajectory_id="talk",
        group_id="",
        input_ids=np.array(ids),
        train_mask=np.array(mask),
        logprobs=np.array(logprobs, np.float32),
        weights=np.array(mask, np.float32),
        images=tuple(look.screenshot for look in seen if look.screenshot),
        image_grids=tuple(completion.image_grid for completion in talk if completion.image_grid),
    )


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.8), (0.0, 1.0)], ids=str
)
def test_recorded_logprobs_are_those_of_the_training_forward_pass(tiny: Tiny, temperature: float, top_p: float) -> None:
    """Five screenshots in context, answers of different lengths, all sessions packed into one row for the trainer."""
    samplings = [Sampling(temperature, top_p, max_tokens=4 + 3 * seed, seed=seed) for seed in range(5)]
    talks = crowd(tiny.agent(), samplings, turns=5)
    samples = [sample_of(tiny, talk, looks(5, i)) for i, talk in enumerate(talks)]
    row = pack(samples, image_id=tiny.chat.image_id)
    with torch.no_grad():
        trained = tiny.fresh().logprobs(row, temperature).numpy()
    assert len(trained) > 150
    assert np.abs(trained - row.logprobs_K).max() < 1e-4
    assert np.ptp(row.logprobs_K) > 0.1


def test_a_changed_model_is_told_from_the_recorded_one(tiny: Tiny) -> None:
    """Guards the test above: the comparison sees a difference of a thousandth in the weights."""
    (talk,) = crowd(tiny.agent(), [Sampling(2.0, seed=1, max_tokens=12)])
    row = pack([sample_of(tiny, talk, looks(3, 0))], image_id=tiny.chat.image_id)
    policy = tiny.fresh()
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter *= 1.001
        assert np.abs(policy.logprobs(row, 2.0).numpy() - row.logprobs_K).max() > 1e-4


def test_a_sample_does_not_depend_on_who_else_is_in_the_batch(tiny: Tiny) -> None:
    samplings = [Sampling(3.0, max_tokens=5 + 2 * seed, seed=seed) for seed in range(6)]
    together = crowd(tiny.agent(), samplings)
    for i, sampling in enumerate(samplings):
        alone = asyncio.run(converse(tiny.agent(), TASKS[i], sampling, looks(3, i)))
        assert [c.completion_ids for c in alone] == [c.completion_ids for c in together[i]]
        for one, other in zip(alone, together[i], strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_the_seed_decides_the_sample(tiny: Tiny) -> None:
    agent = tiny.agent()
    first, again, other = (
        asyncio.run(converse(agent, TASKS[0], Sampling(3.0, max_tokens=12, seed=seed), looks(2))) for seed in (1, 1, 2)
    )
    assert [c.completion_ids for c in first] == [c.completion_ids for c in again]
    assert [c.completion_ids for c in first] != [c.completion_ids for c in other]


def test_the_cache_across_turns_is_a_recomputation(tiny: Tiny) -> None:
    """Greedy, token by token: at each step the whole conversation so far through the training forward pass."""
    seen = looks(3)
    talk = asyncio.run(converse(tiny.agent(), TASKS[0], Sampling(0.0, max_tokens=6), seen))
    sample, policy = sample_of(tiny, talk, seen), tiny.fresh()
    assert len(talk) == 3
    row = pack([sample], image_id=tiny.chat.image_id)
    with torch.no_grad():
        logp_KV = policy.distribution(row)
    assert logp_KV.argmax(-1).tolist() == row.targets_K.tolist()


def test_sessions_that_begin_together_share_what_they_begin_with(tiny: Tiny) -> None:
    """The instructions run once a wave, not once a session, and the answers are those of sessions that begin alone."""
    agent, widths = tiny.agent(), []
    forward = agent._forward

    def watched(cache: WaveCache, ids_BT: Tensor, *rest: Any) -> Tensor:
        widths.append(tuple(ids_BT.shape))
        return forward(cache, ids_BT, *rest)

    agent._forward = watched  # type: ignore[method-assign]
    samplings = [Sampling(1.0, max_tokens=2, seed=seed) for seed in range(4)]
    together = crowd(agent, samplings, turns=2)
    (one, shared), (four, rest) = widths[:2]
    first = together[0][0].prompt_ids
    assert (one, four) == (1, 4)
    assert tiny.chat.image_id in first[shared:]
    assert tiny.chat.image_id not in first[:shared]
    assert shared > 10
    grid = together[0][0].image_grid
    assert grid is not None
    assert rest == max(len(tiny.chat.expand(talk[0].prompt_ids[shared:], [grid])) for talk in together)
    alone = [asyncio.run(converse(tiny.agent(), TASKS[i], samplings[i], looks(2, i))) for i in range(4)]
    assert [[c.completion_ids for c in talk] for talk in alone] == [
        [c.completion_ids for c in talk] for talk in together
    ]


def test_a_long_prompt_does_not_pad_the_short_ones() -> None:
    assert widths_alike([40] * 20) == [slice(0, 20)]
    assert widths_alike([40] * 20 + [90]) == [slice(0, 20), slice(20, 21)]
    assert widths_alike([40] * 3 + [90] * 9) == [slice(0, 8), slice(8, 12)]
    assert widths_alike([40, 45, 49] * 4) == [slice(0, 12)]
    assert widths_alike([7]) == [slice(0, 1)]


def test_forbidden_ids_are_never_sampled(tiny: Tiny) -> None:
    """Nearly uniform over 2,286 ids, of which six are forbidden: 4,000 draws would hit one some ten times."""
    talks = crowd(tiny.agent(), [Sampling(100.0, max_tokens=140, seed=seed) for seed in range(32)], turns=1)
    ids = [i for talk in talks for completion in talk for i in completion.completion_ids]
    assert len(ids) > 4000
    assert len(set(ids)) > 1500
    assert not set(ids) & set(tiny.chat.forbidden_ids)


def test_max_tokens_and_the_end_marker_end_an_answer(tiny: Tiny) -> None:
    talks = crowd(tiny.agent(), [Sampling(100.0, max_tokens=300, seed=seed) for seed in range(16)], turns=1)
    answers = [completion for talk in talks for completion in talk]
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    for answer in answers:
        assert len(answer.logprobs) == len(answer.completion_ids) <= 300
        assert (answer.completion_ids[-1] == tiny.chat.end_id) == (answer.finish_reason == "stop")
        assert tiny.chat.end_id not in answer.completion_ids[:-1]
        assert answer.finish_reason == "stop" or len(answer.completion_ids) == 300
        assert "<|im_end|>" not in answer.text


def test_the_nucleus_is_the_smallest_set_of_enough_mass() -> None:
    logp = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in [(0.4, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.9, 3), (1.0, 4)]:
        assert int((nucleus(logp, top_p) > 0).sum()) == kept, top_p


def test_theinverse_transform_draws_from_the_distribution() -> None:
    probabilities = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    uniforms = torch.from_numpy(np.random.default_rng(0).random(20_000))
    ids = inverse_transform(probabilities.expand(20_000, -1), uniforms.float())
    share = torch.bincount(ids, minlength=6) / 20_000
    assert share.tolist() == pytest.approx(probabilities.tolist(), abs=0.01)
    assert share[[0, 2, 5]].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_choose_ids_that_have_a_probability(uniform: float) -> None:
    """1 - 2**-53 is 1 in float32."""
    probabilities = torch.tensor([[0.0, 0.0, 0.25, 0.4, 0.35, 0.0, 0.0]])
    for scale in (1.0, 0.3, 0.77777, 1.00001):
        chosen = int(inverse_transform(probabilities * scale, torch.tensor([uniform], dtype=torch.float32)))
        assert chosen == (2 if uniform == 0.0 else 4)


def test_top_p_samples_only_from_thenucleus(tiny: Tiny) -> None:
    """One screen, forty seeds: the smallest nucleus is the greedy token, a small one has a few, the whole has many."""

    async def firsts(temperature: float, top_p: float) -> set[int]:
        agent = tiny.agent()
        talks = [converse(agent, TASKS[0], Sampling(temperature, top_p, 1, seed), looks(1)) for seed in range(40)]
        return {talk[0].completion_ids[0] for talk in await asyncio.gather(*talks)}

    greedy, least, few, many = (
        asyncio.run(firsts(temperature, top_p)) for temperature, top_p in ((0, 1), (1, 1e-9), (1, 0.03), (1, 1))
    )
    assert greedy == least
    assert greedy < few
    assert len(few) < 15 < len(many)


def test_sessions_of_one_engine_share_their_temperature(tiny: Tiny) -> None:
    async def mixed() -> None:
        agent = tiny.agent()
        session = await agent.open(TASKS[0], Sampling(1.0))
        with pytest.raises(AgentError, match="share temperature and top_p"):
            await agent.open(TASKS[0], Sampling(0.5))
        await session.close()
        await (await agent.open(TASKS[0], Sampling(0.5))).close()

    asyncio.run(mixed())


def test_an_engine_that_fails_is_an_error_of_the_agent_for_all_in_the_wave(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory, for example; the engine itself goes on."""
    agent = tiny.agent()
    decode = agent._decode

    def short_of_memory(*args: object) -> None:
        monkeypatch.setattr(agent, "_decode", decode)
        raise torch.OutOfMemoryError("cannot allocate 3 GB")

    monkeypatch.setattr(agent, "_decode", short_of_memory)
    specs = plan(tiny.config, TASKS[:3], partition="p", samples=1, temperature=1.0, max_turns=2)
    played: list[object] = []
    space = tiny.chat.space
    asyncio.run(play(specs, agent, space, desktop, concurrency=3, on_trajectory=played.append))
    assert [(t.outcome, t.failure, t.task_reward) for t in played] == [("failed", "agent", None)] * 3  # type: ignore[attr-defined]
    assert "cannot allocate 3 GB" in played[0].error  # type: ignore[attr-defined]
    played.clear()
    asyncio.run(play(specs, agent, space, desktop, concurrency=3, on_trajectory=played.append))
    assert [t.failure for t in played] == [None] * 3  # type: ignore[attr-defined]


def test_a_bug_in_the_engine_reaches_everybody_who_waits(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left waiting for ever; the run stops."""
    agent = tiny.agent()

    def bug(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(agent, "_decode", bug)

    async def watched() -> None:
        talks = [converse(agent, task, Sampling(), looks(1)) for task in TASKS]
        found = await asyncio.wait_for(asyncio.gather(*talks, return_exceptions=True), 20)
        assert all(isinstance(error, ZeroDivisionError) for error in found)

    asyncio.run(watched())


def test_a_session_that_is_cancelled_while_it_waits_disturbs_nobody(tiny: Tiny) -> None:
    agent = tiny.agent()
    sampling = Sampling(3.0, max_tokens=8, seed=3)

    async def with_a_quitter() -> list[Completion]:
        quitter = asyncio.create_task(converse(agent, TASKS[1], Sampling(3.0, max_tokens=8), looks(4)))
        staying = asyncio.create_task(converse(agent, TASKS[0], sampling, looks(3)))
        await asyncio.sleep(0)
        quitter.cancel()
        return await asyncio.wait_for(staying, 20)

    alone = asyncio.run(converse(tiny.agent(), TASKS[0], sampling, looks(3)))
    found = asyncio.run(with_a_quitter())
    assert [c.completion_ids for c in found] == [c.completion_ids for c in alone]
    assert agent._sessions == set()


def test_a_conversation_without_pictures(tiny: Tiny) -> None:
    seen = [Observation(None, last_result=text) for text in ("one", "two")]
    talk = asyncio.run(converse(tiny.agent(), TASKS[0], Sampling(2.0, max_tokens=6, seed=1), seen))
    row = pack([sample_of(tiny, talk, seen)], image_id=tiny.chat.image_id)
    with torch.no_grad():
        trained = tiny.fresh().logprobs(row, 2.0).numpy()
    assert np.abs(trained - row.logprobs_K).max() < 1e-4


def test_pictures_of_different_sizes_side_by_side(tiny: Tiny) -> None:
    sizes = [(64, 64), (160, 128), (96, 192)]
    random = np.random.default_rng(0)
    seen = [
        [Observation(Screenshot.from_array(random.integers(0, 256, (*size, 3), dtype=np.uint8))) for _ in range(2)]
        for size in sizes
    ]

    async def all_of_them(agent: LocalAgent) -> list[list[Completion]]:
        return await asyncio.gather(*(converse(agent, TASKS[0], Sampling(2.0, max_tokens=6), s) for s in seen))

    talks = asyncio.run(all_of_them(tiny.agent()))
    samples = [sample_of(tiny, talk, s) for talk, s in zip(talks, seen, strict=True)]
    row = pack(samples, image_id=tiny.chat.image_id)
    with torch.no_grad():
        trained = tiny.fresh().logprobs(row, 2.0).numpy()
    assert np.abs(trained - row.logprobs_K).max() < 1e-4


def test_one_model_is_sampled_from_and_trained_in_turns(tiny: Tiny) -> None:
    """As policy gradient does: the trainer's packed attention must not stay when the engine comes back."""
    policy = tiny.fresh()
    sampling = Sampling(2.0, max_tokens=6, seed=1)
    for _ in range(2):
        agent = LocalAgent(policy.model, tiny.chat, tiny.policy)
        talk = asyncio.run(converse(agent, TASKS[0], sampling, looks(2)))
        policy = PolicyModel(policy.model, tiny.chat)
        row = pack([sample_of(tiny, talk, looks(2))], image_id=tiny.chat.image_id)
        assert np.abs(policy.logprobs(row, 2.0).detach().numpy() - row.logprobs_K).max() < 1e-4


def test_an_engine_leaves_no_thread_behind(tiny: Tiny) -> None:
    before = set(threading.enumerate())
    for seed in range(3):
        crowd(tiny.agent(), [Sampling(1.0, max_tokens=2, seed=seed)], turns=1)
    gc.collect()
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(5)
    assert [thread.name for thread in started if thread.is_alive()] == []
