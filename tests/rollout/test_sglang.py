"""The agent behind sglang's protocol, against a server that speaks it with the tiny model behind it."""

import asyncio
from pathlib import Path

import pytest
import torch

from flywheel.config import Config
from flywheel.errors import ConfigError
from flywheel.jobs.doctor import trainer_logprobs
from flywheel.rollout.agents.sglang import SglangAgent, load_weights
from flywheel.rollout.episode import EpisodeSpec, run_episode
from flywheel.types import Sampling, Trajectory
from flywheel.window import Window
from tests.sglang_server import Engine, sglang
from tests.tiny import SCREEN, Tiny, desktop, some_tasks

SAMPLING = Sampling(1.0, max_tokens=12, seed=3)


def played(tiny: Tiny, config: Config, *, mark: str = "ours", sampling: Sampling = SAMPLING) -> Trajectory:
    agent = SglangAgent(config.sglang, tiny.chat, tiny.policy, mark)
    return asyncio.run(run_episode(desktop(), agent, tiny.chat.space, EpisodeSpec("e", some_tasks(1)[0], sampling, 3)))


def loaded(tiny: Tiny, config: Config) -> None:
    load_weights(config.sglang, Path(tiny.policy.uri), "ours")


def test_what_it_records_is_what_the_trainer_scores(tiny: Tiny) -> None:
    with sglang(tiny) as (engine, config):
        loaded(tiny, config)
        trajectory = played(tiny, config)
    assert trajectory.failure is None
    assert len(trajectory.turns) == 3
    sample = tiny.chat.sample(trajectory)
    assert [len(request["image_data"]) for request in engine.requests] == [1, 2, 3]
    scored = trainer_logprobs(tiny.fresh().model, tiny.chat)([sample])
    assert (scored - torch.from_numpy(sample.logprobs[sample.train_mask])).abs().max() < 1e-4
    said = {token for turn in trajectory.turns for token in turn.completion_ids}
    assert not said & set(tiny.chat.forbidden_ids)


def test_ids_go_out_as_they_were_sampled(tiny: Tiny) -> None:
    """The next request begins with the last one and its answer: nothing is tokenised again."""
    with sglang(tiny) as (engine, config):
        loaded(tiny, config)
        trajectory = played(tiny, config)
    first, second = (request["input_ids"] for request in engine.requests[:2])
    assert second[: len(first)] == first
    assert tuple(second[len(first) :][: len(trajectory.turns[0].completion_ids)]) == trajectory.turns[0].completion_ids
    assert (
        trajectory.turns[1].prompt_ids[0] == tiny.chat.end_id
    )  # the first answer was cut: its end comes with what follows
    assert trajectory.turns[0].finish_reason == "length"


def test_a_cut_window_begins_the_conversation_anew(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny.chat.words, "window", Window(1, 1))
    with sglang(tiny) as (engine, config):
        loaded(tiny, config)
        played(tiny, config)
    assert [len(request["image_data"]) for request in engine.requests] == [1, 2, 1]


def test_an_episode_repeats_on_a_server_that_heeds_seeds(tiny: Tiny) -> None:
    with sglang(tiny) as (_, config):
        loaded(tiny, config)
        first, again = (played(tiny, config) for _ in range(2))
    assert [turn.completion_ids for turn in first.turns] == [turn.completion_ids for turn in again.turns]


def test_a_large_screen_is_sent_as_the_model_sees_it(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    halved = SCREEN._replace(width=SCREEN.width // 2 // 32 * 32, height=SCREEN.height // 2 // 32 * 32)
    monkeypatch.setattr(tiny.chat, "model_size", lambda size: halved)
    with sglang(tiny) as (engine, config):
        loaded(tiny, config)
        trajectory = played(tiny, config)
    assert trajectory.failure is None
    t, h, w = trajectory.turns[0].image_grid or (0, 0, 0)
    assert (t, h * 16, w * 16) == (1, halved.height, halved.width)
    assert engine.requests


def test_answers_of_other_weights_are_never_recorded(tiny: Tiny) -> None:
    with sglang(tiny) as (_, config):
        loaded(tiny, config)
        trajectory = played(tiny, config, mark="others")
    assert (trajectory.failure, trajectory.turns, trajectory.task_reward) == ("agent", (), None)
    assert "weights of another run" in (trajectory.error or "")


def test_what_cannot_go_well_stops_the_run(tiny: Tiny, tmp_path: Path) -> None:
    with sglang(tiny) as (engine, config):
        loaded(tiny, config)
        engine.miscounts = 3
        with pytest.raises(ConfigError, match="its processor sees screenshots at another size"):
            played(tiny, config)
        with pytest.raises(ConfigError, match="refuses the request: HTTP 400"):
            load_weights(config.sglang, tmp_path, "ours")


def test_another_protocol_is_the_agents_failure(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "generate", lambda self, body: {"choices": []})
    with sglang(tiny) as (_, config):
        trajectory = played(tiny, config)
    assert trajectory.failure == "agent"
    assert "does not speak sglang's protocol" in (trajectory.error or "")
