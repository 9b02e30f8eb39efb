"""A model behind the OpenAI chat-completions protocol: one question, one or several answers, in words.

sglang, vLLM and most vendors speak it. The token comes from the environment and is sent to the configured address
only. What a busy or restarting server refuses is asked again; what it will never accept stops the run at once.
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from flywheel.errors import AgentError, ConfigError
from flywheel.sections import HostedConfig
from flywheel.types import Screenshot

Message = Mapping[str, Any]
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class _BusyError(AgentError):
    """Worth asking again."""


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
        if not config.url.startswith(("http://", "https://")):
            raise ConfigError(f"'{config.url}' is no address of a model (hosted.url); write https://HOST/v1.")
        self._config, self._retry_wait = config, retry_wait
        token = os.environ.get(config.key, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=config.timeout)

    async def __aenter__(self) -> "HostedModel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the connections; safe to call twice."""
        await self._http.aclose()

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
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_BusyError),
            stop=stop_after_delay(self._config.patience),
            wait=wait_random_exponential(max=self._retry_wait),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                return _replies(await self._post(body), self._config.url)
        raise AssertionError("tenacity returns or raises")

    async def _post(self, body: Mapping[str, Any]) -> Any:
        url = self._config.url
        try:
            answer = await self._http.post(f"{url.rstrip('/')}/chat/completions", json=body)
        except httpx.TransportError as error:
            raise _BusyError(f"The model at {url} does not answer ({type(error).__name__}).") from error
        if answer.status_code in BUSY:
            raise _BusyError(f"The model at {url} is busy (HTTP {answer.status_code}).")
        if answer.status_code in (401, 403):
            raise ConfigError(f"The model at {url} refuses the token; put a valid one into {self._config.key}.")
        if answer.is_error:
            raise ConfigError(f"The model at {url} refuses the request: HTTP {answer.status_code} {answer.text[:200]}")
        try:
            return answer.json()
        except json.JSONDecodeError as error:
            raise AgentError(f"The model at {url} answers with something that is not JSON.") from error


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
