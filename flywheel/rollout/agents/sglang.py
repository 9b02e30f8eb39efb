"""An agent behind sglang's own protocol: ids in, ids and logprobs out, so that what is recorded is what was sampled.

Kept of `/generate`: `input_ids` with one placeholder an image, screenshots beside them, `logit_bias` for ids that must
never be sampled, logprobs of what was. The server lengthens placeholders itself; its count of prompt tokens is held
against ours, which shows a processor that would see a screenshot at another size. Weights come through
`/update_weights_from_disk` under a mark that every answer bears, so an answer of other weights is never recorded.

Each turn sends the whole conversation; what of it the server has read before, it finds by its prefix.
"""

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

from flywheel.chat import Chat, Grid
from flywheel.errors import AgentError, ConfigError
from flywheel.rollout.agents.base import Completion
from flywheel.rollout.agents.conversation import Conversation
from flywheel.rollout.agents.http import ModelServer
from flywheel.sections import SglangConfig
from flywheel.seeds import derive_seed
from flywheel.types import Observation, PolicyRef, Sampling, Screenshot, Task

NEVER = -1e9
"""Bias that leaves no probability in float32; JSON has no infinity."""


def load_weights(config: SglangConfig, folder: Path, mark: str) -> None:
    """Have the server answer with the weights of a policy folder, and forget what it has read with others.

    Args:
        mark: what its answers bear from now on.
    Raises: `ConfigError` when it refuses them, `AgentError` when it does not answer in time.
    """
    asyncio.run(_load_weights(config, {"model_path": str(folder.absolute()), "weight_version": mark}))


async def _load_weights(config: SglangConfig, body: dict[str, Any]) -> None:
    server = ModelServer(config, "sglang")
    try:
        await server.post("/update_weights_from_disk", body)
    finally:
        await server.close()


class SglangAgent:
    """A policy that a server plays.

    Args:
        config: where the server is.
        chat: words and pixels.
        mark: that of the weights which are to answer.
    """

    def __init__(self, config: SglangConfig, chat: Chat, policy: PolicyRef, mark: str) -> None:
        self.config, self.chat, self.policy, self.mark = config, chat, policy, mark

    async def open(self, task: Task, sampling: Sampling) -> "SglangSession":
        return SglangSession(self, task, sampling)


class SglangSession:
    """One episode; holds its own connection."""

    def __init__(self, agent: SglangAgent, task: Task, sampling: Sampling) -> None:
        self._agent, self._sampling = agent, sampling
        self._server = ModelServer(agent.config, "sglang")
        self._conversation = Conversation(agent.chat, task)
        self._ids: list[int] = []
        self._pictures: list[tuple[str, Grid]] = []
        self._turns = 0

    async def act(self, observation: Observation) -> Completion:
        """Raises `AgentError` when no answer comes or it is not of our weights, `ConfigError` when none ever will."""
        started = time.perf_counter()
        prompt = self._conversation.prompt(observation)
        if self._conversation.begun_anew:
            self._ids, self._pictures = [], []
        self._ids += prompt.ids
        self._pictures += [(_sent(self._agent.chat.shown(image)), grid) for image, grid in prompt.pictures]
        answer = await self._server.post("/generate", self._request())
        ids, logprobs = self._read(answer)
        self._ids += ids
        self._turns += 1
        self._conversation.answered(ids)
        return Completion(
            text=self._agent.chat.decode(ids),
            prompt_ids=prompt.ids,
            completion_ids=ids,
            logprobs=logprobs,
            image_grid=prompt.grid,
            finish_reason="stop" if ids[-1] == self._agent.chat.end_id else "length",
            seconds=time.perf_counter() - started,
        )

    async def close(self) -> None:
        await self._server.close()

    def _request(self) -> dict[str, Any]:
        chat, sampling = self._agent.chat, self._sampling
        return {
            "input_ids": self._ids,
            "return_logprob": True,
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_new_tokens": sampling.max_tokens,
                "stop_token_ids": [chat.end_id],
                "logit_bias": {str(token): NEVER for token in chat.forbidden_ids},
                # Heeded by a server that is deterministic; 31 bits of it.
                "sampling_seed": derive_seed(sampling.seed, "turn", self._turns) >> 32,
            },
            **({"image_data": [picture for picture, _ in self._pictures]} if self._pictures else {}),
        }

    def _read(self, answer: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Ids and logprobs of an answer that is what was asked for."""
        url = self._agent.config.url
        try:
            about = answer["meta_info"]
            mark, seen, sampled = about["weight_version"], about["prompt_tokens"], about["output_token_logprobs"]
            logprobs, ids = tuple(float(step[0]) for step in sampled), tuple(int(step[1]) for step in sampled)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise AgentError(f"The engine at {url} does not speak sglang's protocol ({error!r}).") from error
        if mark != self._agent.mark:
            raise AgentError(f"The engine at {url} was given the weights of another run meanwhile; start one for each.")
        if seen != self._expanded:
            raise ConfigError(
                f"The engine at {url} reads {seen} prompt tokens where {self._expanded} are meant; its processor sees "
                "screenshots at another size, so take model.max_pixels from the preprocessor of the policy."
            )
        if not ids:
            raise AgentError(f"The engine at {url} gave an empty answer.")
        return ids, logprobs

    @property
    def _expanded(self) -> int:
        """Prompt tokens once every placeholder is as long as its picture."""
        merge = self._agent.chat.processor.image_processor.merge_size**2
        return len(self._ids) + sum(t * h * w // merge - 1 for _, (t, h, w) in self._pictures)


def _sent(image: Screenshot) -> str:
    return base64.b64encode(image.encode().data).decode()
