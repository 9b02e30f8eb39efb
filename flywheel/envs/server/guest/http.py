"""Reading requests strictly, answering refusals in one shape, and bounding bodies."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import RefusedError

BODY_LIMIT = 8 * 2**20
UPLOAD_LIMIT = 2 * 2**30
"""Bytes of a request, and of a file that a task brings along."""

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
_JSON: dict[type, str] = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}

quick = CapacityLimiter(16)
"""Threads for what takes milliseconds; children that wait have their own, so that they cannot keep screenshots out."""
patient = CapacityLimiter(64)


async def threaded(function: Callable[..., T], *args: Any, limiter: CapacityLimiter = quick) -> T:
    """Blocking work on a thread; it is not interrupted when the client goes away."""
    return await to_thread.run_sync(function, *args, limiter=limiter)


class Fields:
    """The JSON object of a request, read field by field; every getter raises `RefusedError`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    async def of(cls, request: Request) -> "Fields":
        try:
            values = json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise RefusedError("The body is not JSON; send an object.") from error
        if not isinstance(values, dict):
            raise RefusedError("The body must be a JSON object.")
        return cls(values)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._of_type(name, str, default)
        if default is None and not value:
            raise RefusedError(f"The field `{name}` is empty; it must be text.")
        return printable(value, f"The field `{name}`")

    def flag(self, name: str) -> bool:
        return bool(self._of_type(name, bool, False))

    def seconds(self, name: str, default: float, most: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most:
            raise RefusedError(f"The field `{name}` must be seconds, at most {most:.0f}.")
        return float(value)

    def mapping(self, name: str) -> dict[str, Any]:
        return dict(self._of_type(name, dict, {}))

    def _of_type(self, name: str, kind: type[T], default: T | None) -> T:
        value = self.values.get(name)
        if value is None:
            value = default
        if not isinstance(value, kind):
            raise RefusedError(f"The field `{name}` is missing or is not {_JSON[kind]}.")
        return value


def printable(value: str, what: str) -> str:
    """`value`, if it can be handed to the system; raises `RefusedError` otherwise."""
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise RefusedError(f"{what} holds a zero byte or half a character; leave it out.")
    return value


def whole(request: Request, name: str, default: int, most: int) -> int:
    """A number from 1 to `most` out of the query; raises `RefusedError`."""
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 12 or not 1 <= int(text) <= most:
        raise RefusedError(f"The parameter `{name}` must be a whole number from 1 to {most}.")
    return int(text)


def refusal(message: str, status: int) -> JSONResponse:
    """The one shape; OSWorld's controllers read `message` here and `error` there."""
    return JSONResponse({"status": "error", "message": message, "error": message}, status)


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return refusal(str(error), error.status)


async def on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return refusal(f"There is nothing at {request.url.path[:200]}.", 404)
    if error.status_code == 405:
        return refusal(f"{request.url.path} does not take {request.method}.", 405)
    return refusal(str(error.detail), error.status_code)


async def on_bug(request: Request, error: Exception) -> Response:
    return refusal(f"The guest server failed with {type(error).__name__}: {str(error)[:300]}.", 500)


def text(message: str) -> PlainTextResponse:
    return PlainTextResponse(message)


class BodyLimit:
    """Refuses bodies over the limit with 413: by the announced length, else as soon as too much has arrived."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = UPLOAD_LIMIT if scope["path"] == "/setup/upload" else BODY_LIMIT
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > limit:
                raise RefusedError(f"The body is over {limit} bytes.", 413)
            return message

        if announced.isdigit() and int(announced) > limit:
            await refusal(f"The body has {int(announced)} bytes; at most {limit} are taken.", 413)(scope, receive, send)
        else:
            await self._app(scope, counted, send)
