"""A server that speaks the OpenAI chat-completions protocol on loopback, answered by a function of the request."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flywheel.sections import HostedConfig

Answer = Callable[[dict[str, Any]], list[Mapping[str, Any]]]
"""A request's body -> messages of the choices."""


@dataclass
class Served:
    """What was asked; `refusals` are HTTP statuses that the next requests get instead of an answer."""

    config: HostedConfig
    bodies: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)


@contextmanager
def served(answer: Answer, token: str | None = None) -> Iterator[Served]:
    """The server, for as long as the block runs. With `token` it accepts no other."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.tokens.append(self.headers.get("Authorization"))
            if self.path != "/v1/chat/completions":
                self._send(404, {"error": "no such path"})
            elif seen.refusals:
                self._send(seen.refusals.pop(0), {"error": "not now"})
            elif token and self.headers.get("Authorization") != f"Bearer {token}":
                self._send(401, {"error": "who are you"})
            else:
                seen.bodies.append(body)
                choices = [{"message": message, "finish_reason": "stop"} for message in answer(body)]
                self._send(200, {"choices": choices})

        def _send(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = Served(HostedConfig(url=f"http://127.0.0.1:{server.server_port}/v1", model="big-one", patience=5.0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
