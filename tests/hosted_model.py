"""A server that speaks the OpenAI chat-completions protocol on loopback, answered by a function of the request."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flywheel.sections import HostedConfig
from tests.loopback import loopback

Answer = Callable[[dict[str, Any]], list[Mapping[str, Any]]]
"""A request's body -> messages of the choices."""


@dataclass
class Served:
    """What was asked; `refusals` are HTTP statuses that the next requests get instead of an answer."""

    config: HostedConfig = HostedConfig(model="big-one", patience=5.0)  # noqa: RUF009  frozen
    bodies: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)


@contextmanager
def served(answer: Answer, token: str | None = None) -> Iterator[Served]:
    """The server, for as long as the block runs. With `token` it accepts no other."""
    seen = Served()

    def respond(path: str, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, Any]:
        seen.tokens.append(headers.get("Authorization"))
        if path != "/v1/chat/completions":
            return 404, {"error": "no such path"}
        if seen.refusals:
            return seen.refusals.pop(0), {"error": "not now"}
        if token and headers.get("Authorization") != f"Bearer {token}":
            return 401, {"error": "who are you"}
        seen.bodies.append(body)
        return 200, {"choices": [{"message": message, "finish_reason": "stop"} for message in answer(body)]}

    with loopback(respond) as url:
        seen.config = seen.config.model_copy(update={"url": f"{url}/v1"})
        yield seen
