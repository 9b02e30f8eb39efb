"""Who may talk to the server: the token that is asked for before anything else is looked at."""

import base64
import binascii
import hmac
import ipaddress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flywheel.errors import ConfigError


class TokenGuard:
    """Answers 401 unless the token comes as `Authorization: Bearer TOKEN`.

    The password of basic authentication is taken too: clients of the bridges send no token of their own, but any HTTP
    library sends one that stands in its URL, `http://flywheel:TOKEN@host:8100`.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not hmac.compare_digest(_token_of(scope), self._token):
            message = "This server wants its token; send it as `Authorization: Bearer TOKEN`."
            answer = JSONResponse(
                {"error": {"kind": "request", "message": message}}, 401, {"WWW-Authenticate": "Bearer"}
            )
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


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


def _token_of(scope: Scope) -> bytes:
    sent: bytes = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, rest = sent.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
