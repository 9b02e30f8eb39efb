"""An agent behind the OpenAI chat-completions protocol: a hosted teacher, or any served model.

It speaks the same words as every other policy: system prompt, observation turns, prompt window and action space are
ours. The protocol carries text, so its trajectories have no token ids and no logprobs; a training set tokenises their
messages.
"""

import time

from flywheel.chat import Words
from flywheel.errors import AgentError
from flywheel.rollout.agents.base import Completion
from flywheel.rollout.agents.hosted import HostedModel, Message, look
from flywheel.sections import HostedConfig
from flywheel.types import Observation, PolicyRef, Sampling, Task


class OpenAIAgent:
    """Answers with what the hosted model says.

    Args:
        config: the model and where it is.
        words: what is said to it.
    """

    def __init__(self, config: HostedConfig, words: Words) -> None:
        self.policy = PolicyRef(config.model, config.url)
        self._config, self._words = config, words

    async def open(self, task: Task, sampling: Sampling) -> "OpenAISession":
        return OpenAISession(self._config, self._words, task, sampling)


class OpenAISession:
    """One episode; holds its own connections."""

    def __init__(self, config: HostedConfig, words: Words, task: Task, sampling: Sampling) -> None:
        self._model = HostedModel(config)
        self._config, self._words, self._task, self._sampling = config, words, task, sampling
        self._seen: list[Observation] = []
        self._said: list[str] = []
        self._start = 0

    async def act(self, observation: Observation) -> Completion:
        """Raises `AgentError` when no answer comes, `ConfigError` when none ever will."""
        started = time.perf_counter()
        self._seen.append(observation)
        images = [int(seen.screenshot is not None) for seen in self._seen]
        self._start = self._words.window.start(images, self._start)
        replies = await self._model.ask(
            self._messages(),
            temperature=self._sampling.temperature,
            max_tokens=self._config.max_tokens,
            tools=self._words.space.tools(),
        )
        if not replies:
            raise AgentError(f"The model at {self._config.url} gave no answer.")
        self._said.append(replies[0].text)
        reason = "length" if replies[0].cut else "stop"
        return Completion(replies[0].text, finish_reason=reason, seconds=time.perf_counter() - started)

    async def close(self) -> None:
        await self._model.close()

    def _messages(self) -> list[Message]:
        messages: list[Message] = [{"role": "system", "content": self._words.space.system_prompt()}]
        for number in range(self._start, len(self._seen)):
            seen = self._seen[number]
            words = {"type": "text", "text": self._words.observation(self._task, seen)}
            parts = [look(seen.screenshot), words] if seen.screenshot else [words]
            messages.append({"role": "user", "content": parts})
            if number < len(self._said):
                messages.append({"role": "assistant", "content": self._said[number]})
        return messages
