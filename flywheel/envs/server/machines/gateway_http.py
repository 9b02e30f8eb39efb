"""A gateway that speaks plain HTTPS with a bearer token, and the loopback ports through which its guests are reached.

    POST   URL/sandboxes                       {image, ttl_s} -> 201 {id, expires_in_s} | 429, 503 with Retry-After
    POST   URL/sandboxes/ID/renew              {ttl_s} -> {expires_in_s}
    DELETE URL/sandboxes/ID                    -> 204; 404 when it is gone
    ANY    URL/sandboxes/ID/ports/PORT/PATH    what the guest answers on that port

The token is `$FLYWHEEL_GATEWAY_TOKEN`. desktop-env speaks HTTP without a token, so a proxy on the host's loopback adds
both; it forwards whole requests and answers, no WebSockets: Chromium's remote debugging does not work through it.
"""

import contextlib
import http.client
import http.server
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from flywheel.envs.server.machines.base import Endpoints
from flywheel.envs.server.machines.gateway import BusyError, Park, Sandbox
from flywheel.errors import ConfigError, InfrastructureError

TOKEN_VARIABLE = "FLYWHEEL_GATEWAY_TOKEN"
_SECONDS = 120.0
_BUSY = (429, 503)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOP_BY_HOP = {"host", "connection", "content-length", "transfer-encoding", "keep-alive", "authorization"}


class _KeepStatus(urllib.request.HTTPErrorProcessor):
    """Statuses are answers, and redirects are not followed: the token stays with the gateway."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


class HttpSandboxes:
    """`Sandboxes` of one gateway."""

    def __init__(self, url: str, token: str, image: str, ttl_s: float) -> None:
        self._url, self._token, self._image, self._ttl = url.rstrip("/"), token, image, ttl_s
        self._opener = urllib.request.build_opener(_KeepStatus())

    def create(self) -> Sandbox:
        answer = self._json("POST", "/sandboxes", {"image": self._image, "ttl_s": self._ttl})
        try:
            return Sandbox(str(answer["id"]), float(answer["expires_in_s"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InfrastructureError(f"{self._url} leased a sandbox without {error}; is it a gateway?") from error

    def renew(self, sandbox: Sandbox) -> Sandbox:
        answer = self._json("POST", f"/sandboxes/{sandbox.id}/renew", {"ttl_s": self._ttl})
        return Sandbox(sandbox.id, float(answer["expires_in_s"]))

    def delete(self, sandbox: Sandbox) -> None:
        self._json("DELETE", f"/sandboxes/{sandbox.id}", None, gone=True)

    def connect(self, sandbox: Sandbox, park: Park) -> tuple[Endpoints, Callable[[], None]]:
        """One loopback port for each of OSWorld's; VNC and Chromium have none."""
        proxies = [self._proxy(f"/sandboxes/{sandbox.id}/ports/{port}", park) for port in (5000, 8080)]

        def close() -> None:
            for proxy in proxies:
                proxy.shutdown()
                proxy.server_close()

        server, vlc = (proxy.server_address[1] for proxy in proxies)
        return Endpoints("127.0.0.1", int(server), 0, 0, int(vlc)), close

    def ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and body; raises `BusyError` for 429 and 503, `InfrastructureError` when nobody answers."""
        headers = {**headers, "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._url + path, data=body, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                status, given, data = answer.status, answer.headers.items(), answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise InfrastructureError(f"The gateway {self._url} does not answer ({error}).") from error
        if status in _BUSY:
            asked = next((value for name, value in given if name.lower() == "retry-after"), "")
            raise BusyError(f"The gateway {self._url} is full (status {status}).", _seconds(asked))
        return status, list(given), data

    def _json(self, method: str, path: str, body: Any, gone: bool = False) -> Any:
        data = None if body is None else json.dumps(body).encode()
        status, _, answer = self.ask(method, path, data, {"Content-Type": "application/json"})
        if status in (401, 403):
            raise InfrastructureError(f"The gateway {self._url} refuses the token; set another {TOKEN_VARIABLE}.")
        if status >= 300 and not (gone and status in (404, 410)):
            raise InfrastructureError(f"The gateway {self._url} answered {method} {path} with status {status}.")
        try:
            return json.loads(answer or b"{}")
        except ValueError as error:
            raise InfrastructureError(f"The gateway {self._url} answered {method} {path} without JSON.") from error

    def _proxy(self, prefix: str, park: Park) -> http.server.ThreadingHTTPServer:
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
                try:
                    status, given, data = park(partial(cluster.ask, self.command, prefix + self.path, body, headers))
                except InfrastructureError as error:
                    status, given, data = 502, [("Content-Type", "text/plain")], str(error).encode()
                self.send_response(status)
                for name, value in given:
                    if name.lower() not in _HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the caller gave up
                    self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = forward

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def _seconds(retry_after: str) -> float:
    """The header holds seconds or a date (RFC 9110, 10.2.3); 0 for neither."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0


def open_gateway(options: Mapping[str, Any]) -> HttpSandboxes:
    """Raises `ConfigError` without a URL, without TLS beyond this machine, and without a token."""
    url = str(options["url"])
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"A gateway machine needs url, such as https://sandboxes.example.com, not {url!r}.")
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise ConfigError(f"{url} would carry the token in the clear; use https.")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigError(f"A gateway machine needs a token; set {TOKEN_VARIABLE}.")
    return HttpSandboxes(url, token, str(options["image"]), float(options["ttl_s"]))
