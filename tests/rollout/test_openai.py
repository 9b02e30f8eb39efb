"""The hosted agent against a server that speaks the protocol: what is asked, what is read, what is refused."""

import asyncio
import base64
import io
from typing import Any

import pytest
from PIL import Image

from flywheel.actions.registry import action_space
from flywheel.chat import Words
from flywheel.errors import ConfigError
from flywheel.rollout.agents.hosted import HostedModel
from flywheel.rollout.agents.openai import OpenAIAgent
from flywheel.rollout.episode import EpisodeSpec, run_episode
from flywheel.types import Done, Sampling, Trajectory
from flywheel.window import EVERYTHING, Window
from tests.hosted_model import Served, served
from tests.tiny import SCREEN, desktop, some_tasks

SPACE = action_space("computer_use")
DONE = SPACE.format(Done(), SCREEN, thinking=None, brief="done")
MOVE = '<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait", "time": 0}}\n</tool_call>'


def played(server: Served, turns: int = 4, window: Window = EVERYTHING) -> Trajectory:
    words = Words(SPACE, ("task", "last_result"), window=window)
    spec = EpisodeSpec("e", some_tasks(1)[0], Sampling(0.3, seed=1), turns)
    return asyncio.run(run_episode(desktop(), OpenAIAgent(server.config, words), SPACE, spec))


def say(*texts: str) -> Any:
    """Each of the texts in turn, the last one for ever."""
    left = list(texts)
    return lambda body: [{"content": left.pop(0) if len(left) > 1 else left[0]}]


def test_an_episode_is_played_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(say(MOVE, "nonsense", DONE), token="sesame") as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sesame")
        trajectory = played(server)
    assert (trajectory.outcome, trajectory.stop_reason, trajectory.failure) == ("completed", "done", None)
    assert trajectory.policy.version == "big-one"
    assert trajectory.policy.uri == server.config.url
    assert [turn.text for turn in trajectory.turns] == [MOVE, "nonsense", DONE]
    assert all(turn.completion_ids == turn.logprobs == turn.prompt_ids == () for turn in trajectory.turns)
    assert trajectory.turns[1].error
    last = server.bodies[-1]
    assert (last["model"], last["temperature"], last["tools"]) == ("big-one", 0.3, SPACE.tools())
    assert [message["role"] for message in last["messages"]] == ["system", *["user", "assistant"] * 2, "user"]
    picture, words = last["messages"][1]["content"]
    kind, data = picture["image_url"]["url"].split(",", 1)
    shown = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    screenshot = trajectory.turns[0].observation.screenshot
    assert screenshot is not None
    assert (kind, shown.tobytes()) == ("data:image/png;base64", screenshot.image().tobytes())
    assert trajectory.task.instruction in words["text"]
    assert "no action" in last["messages"][-1]["content"][1]["text"]


def test_calls_that_the_server_has_parsed_are_read_as_said() -> None:
    call = {"function": {"name": "computer_use", "arguments": '{"action": "terminate", "status": "success"}'}}
    with served(lambda body: [{"content": "Action: stop", "tool_calls": [call]}]) as server:
        trajectory = played(server)
    assert trajectory.stop_reason == "done"
    assert trajectory.turns[0].action == Done()
    assert trajectory.turns[0].fallback is False
    assert trajectory.turns[0].text.startswith("Action: stop\n<tool_call>")


def test_the_prompt_window_is_that_of_every_other_policy() -> None:
    with served(say(MOVE)) as server:
        played(server, turns=5, window=Window(1, 1))
    assert [sum(m["role"] == "user" for m in body["messages"]) for body in server.bodies] == [1, 2, 1, 2, 1]


def test_a_busy_server_is_asked_again_and_a_dead_one_is_the_agents_failure() -> None:
    with served(say(DONE)) as server:
        server.refusals = [429, 503]

        async def asked() -> str:
            async with HostedModel(server.config, retry_wait=0.01) as model:
                return (await model.ask([], temperature=0.0, max_tokens=5))[0].text

        assert asyncio.run(asked()) == DONE
        assert len(server.tokens) == 3
        server.config = server.config.model_copy(update={"patience": 0.01})
        server.refusals = [503] * 50
        assert played(server).failure == "agent"
    gone = played(server)
    assert (gone.failure, gone.task_reward) == ("agent", None)
    assert "does not answer" in (gone.error or "")


def test_what_a_server_will_never_accept_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(say(DONE), token="sesame") as server:
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        with pytest.raises(ConfigError, match="refuses the token; put a valid one into OPENAI_API_KEY"):
            played(server)
        server.refusals = [400]
        with pytest.raises(ConfigError, match="refuses the request: HTTP 400"):
            played(server)
    assert "Bearer wrong" in server.tokens
    with pytest.raises(ConfigError, match="no address of a model"):
        HostedModel(server.config.model_copy(update={"url": "localhost:1"}))


def test_another_protocol_is_the_agents_failure() -> None:
    with served(lambda body: [{"tool_calls": [{"name": "odd"}]}]) as server:
        trajectory = played(server)
    assert trajectory.failure == "agent"
    assert "does not speak the chat-completions protocol" in (trajectory.error or "")
    assert trajectory.task_reward is None
