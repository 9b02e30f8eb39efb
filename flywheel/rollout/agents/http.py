"""JSON over HTTP to the server of a model.

The token comes from the environment and is sent to the configured address only. What a busy or restarting server
refuses is asked again; what it will never accept stops the run at once.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from flywheel.errors import AgentError, ConfigError
from flywheel.sections import ServerConfig

BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class _BusyError(AgentError):
    """Worth asking again."""


class ModelServer:
    """`answer = await ModelServer(config, "hosted").post("/chat/completions", body)`.

    Args:
        config: address, variable that holds the token, deadlines.
        section: of the configuration, for messages.
        retry_wait: longest pause between two tries, seconds.

    Raises `ConfigError` for an address that is none.
    """

    def __init__(self, config: ServerConfig, section: str, *, retry_wait: float = 20.0) -> None:
        if not config.url.startswith(("http://", "https://")):
            raise ConfigError(f"'{config.url}' is no address of a model ({section}.url); write {type(config)().url}.")
        self._config, self._retry_wait = config, retry_wait
        token = os.environ.get(config.key, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=config.timeout)

    async def close(self) -> None:
        """Drop the connections; safe to call twice."""
        await self._http.aclose()

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that it answers.

        Raises: `ConfigError` when the token or the request is refused, `AgentError` when no answer comes in time.
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_BusyError),
            stop=stop_after_delay(self._config.patience),
            wait=wait_random_exponential(max=self._retry_wait),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                return await self._post(path, body)
        raise AssertionError("tenacity returns or raises")

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        url = self._config.url
        try:
            answer = await self._http.post(f"{url.rstrip('/')}{path}", json=body)
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
