"""A model behind the OpenAI chat-completions protocol: one question, one or several answers, in words.

sglang, vLLM and most vendors speak it.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.errors import AgentError
from flywheel.rollout.agents.http import ModelServer
from flywheel.sections import HostedConfig
from flywheel.types import Screenshot

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: its text, calls of tools written out in it, and whether it was cut at the token limit."""

    text: str
    cut: bool


class HostedModel:
    """`async with HostedModel(config) as model: replies = await model.ask(messages)`.

    Args:
        config: address, model name, variable that holds the token, deadlines.
        retry_wait: longest pause between two tries, seconds.

    Raises `ConfigError` for an address that is none.
    """

    def __init__(self, config: HostedConfig, *, retry_wait: float = 20.0) -> None:
        self._config = config
        self._server = ModelServer(config, "hosted", retry_wait=retry_wait)

    async def __aenter__(self) -> "HostedModel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the connections; safe to call twice."""
        await self._server.close()

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        temperature: float,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
        count: int = 1,
    ) -> list[Reply]:
        """`count` answers to a conversation.

        Raises: `ConfigError` when the token or the request is refused, `AgentError` when no answer comes in time.
        """
        body: dict[str, Any] = {"model": self._config.model, "messages": list(messages), "temperature": temperature}
        body |= {"max_tokens": max_tokens, "n": count} | ({"tools": list(tools)} if tools else {})
        return _replies(await self._server.post("/chat/completions", body), self._config.url)


def look(screenshot: Screenshot) -> dict[str, Any]:
    """A screenshot as a part of a message."""
    encoded = screenshot.encode()
    data = base64.b64encode(encoded.data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{encoded.codec};base64,{data}"}}


def _replies(answer: Any, url: str) -> list[Reply]:
    try:
        return [
            Reply(_text(choice["message"]), choice.get("finish_reason") == "length") for choice in answer["choices"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise AgentError(f"The model at {url} does not speak the chat-completions protocol ({error!r}).") from error


def _text(message: Mapping[str, Any]) -> str:
    """Content, and calls that the server has parsed written back as the model said them."""
    parts = [message.get("content") or ""]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        said = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        parts.append(f"<tool_call>\n{json.dumps(said, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(part for part in parts if part)
