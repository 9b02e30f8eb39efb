"""Who may talk to the server, and how much may be said: looked at before anything else of a request is."""

import base64
import binascii
import hmac
import ipaddress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flywheel.errors import ConfigError


class Guard:
    """Answers 401 unless `Authorization: Bearer TOKEN` comes, and 413 to an announced body that is too large.

    The password of basic authentication is taken too: clients of the bridges send no token of their own, but any HTTP
    library sends one that stands in its URL, `http://flywheel:TOKEN@host:8100`. Bodies of unannounced size are cut by
    FastAPI as they arrive.
    """

    def __init__(self, app: ASGIApp, token: str | None, body_limit: int) -> None:
        self._app, self._body_limit = app, body_limit
        self._token = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._token is not None and not hmac.compare_digest(_token_of(headers), self._token):
            message = "This server wants its token; send it as `Authorization: Bearer TOKEN`."
            await _refuse(401, message, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        elif int(headers.get(b"content-length", b"0")) > self._body_limit:
            message = f"The body is larger than the {self._body_limit} bytes that this server takes."
            await _refuse(413, message, {"Connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _refuse(status: int, message: str, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse({"error": {"kind": "request", "message": message}}, status, headers)


def check_exposed(host: str, token: str | None, variable: str) -> None:
    """Raises `ConfigError` when others could reach a server that asks nobody for a token."""
    if not token and not is_loopback(host):
        raise ConfigError(
            f"Binding to {host} lets other machines in, and no token is set; "
            f"put one into ${variable} or bind to 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; names other than localhost count as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token_of(headers: dict[bytes, bytes]) -> bytes:
    sent = headers.get(b"authorization", b"")
    scheme, _, rest = sent.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
