"""Sandboxes behind a gateway: a real HTTP server that has a quota, asks for patience, and lets leases expire."""

import http.server
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from flywheel.envs.server.machines import gateway_http
from flywheel.envs.server.machines.gateway import BusyError, GatewayMachine, parked
from flywheel.errors import ConfigError, InfrastructureError

TOKEN = "right"


class _Gateway(http.server.ThreadingHTTPServer):
    """`refuse`: answers to give before anything else, as (status, Retry-After)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.refuse: list[tuple[int, str]] = []
        self.leases: set[str] = set()
        self.made = self.renewed = 0
        self.seconds = 60.0
        self.seen: list[tuple[str, str, bytes]] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Gateway

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, body))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._reply(401)
        if self.server.refuse:
            status, after = self.server.refuse.pop(0)
            return self._reply(status, {"Retry-After": after} if after else {})
        parts = self.path.strip("/").split("/")
        if parts == ["sandboxes"]:
            self.server.made += 1
            self.server.leases.add(f"s{self.server.made}")
            given = {"id": f"s{self.server.made}", "expires_in_s": self.server.seconds}
            return self._reply(201, data=json.dumps(given).encode())
        if parts[1] not in self.server.leases:
            return self._reply(404)
        if self.command == "DELETE":
            self.server.leases.discard(parts[1])
            return self._reply(204)
        if parts[2] == "renew":
            self.server.renewed += 1
            return self._reply(200, data=json.dumps({"expires_in_s": self.server.seconds}).encode())
        return self._reply(200, {"X-Guest": parts[3]}, body or b"Linux")

    do_GET = do_POST = do_DELETE = answer

    def _reply(self, status: int, headers: dict[str, str] | None = None, data: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Gateway]:
    monkeypatch.setenv(gateway_http.TOKEN_VARIABLE, TOKEN)
    server = _Gateway()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _machine(gateway: _Gateway, **options: Any) -> GatewayMachine:
    return GatewayMachine({"url": gateway.url, "image": "osworld", **options})


def _ask(machine: GatewayMachine, path: str, body: bytes | None = None) -> bytes:
    where = machine.endpoints()
    with urllib.request.urlopen(f"http://{where.host}:{where.server}{path}", body, timeout=30) as answer:
        data: bytes = answer.read()
        return data


def test_a_sandbox_is_leased_reached_replaced_and_given_back(gateway: _Gateway) -> None:
    machine = _machine(gateway, ttl_s=90)
    assert "not started" in (machine.health() or "")
    machine.start()
    assert gateway.seen[0] == ("POST", "/sandboxes", b'{"image": "osworld", "ttl_s": 90.0}')
    assert machine.health() is None
    assert _ask(machine, "/execute?x=1", b"{}") == b"{}"
    assert gateway.seen[-1] == ("POST", "/sandboxes/s1/ports/5000/execute?x=1", b"{}")
    machine.revert()
    assert gateway.leases == {"s2"}
    assert machine.health() is None
    machine.stop()
    machine.stop()
    assert gateway.leases == set()
    with pytest.raises(InfrastructureError, match="not started"):
        machine.endpoints()


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_cluster_is_waited_for_as_long_as_it_asks(gateway: _Gateway, status: int) -> None:
    gateway.refuse = [(status, "1")]
    machine = _machine(gateway)
    began = time.monotonic()
    machine.start()
    assert time.monotonic() - began >= 1.0
    assert gateway.made == 1
    machine.stop()


def test_an_episode_outlives_a_burst_at_the_quota(gateway: _Gateway) -> None:
    """A request is refused in the middle, and the client of the guest sees only that it took longer."""
    machine = _machine(gateway)
    machine.start()
    gateway.refuse = [(429, ""), (503, "1")]
    began = time.monotonic()
    assert _ask(machine, "/run_python", b"print()") == b"print()"
    assert time.monotonic() - began >= 1.0
    assert machine.health() is None
    machine.stop()


def test_patience_has_an_end(gateway: _Gateway) -> None:
    gateway.refuse = [(429, "1")] * 100
    with pytest.raises(BusyError, match="full"):
        _machine(gateway, park_s=0.5).start()
    assert gateway.made == 0


def test_stopping_ends_the_waiting_at_once(gateway: _Gateway) -> None:
    machine = _machine(gateway)
    machine.start()
    gateway.refuse = [(429, "3600")]
    errors: list[int] = []

    def ask() -> None:
        try:
            _ask(machine, "/screenshot")
        except urllib.error.HTTPError as error:
            errors.append(error.code)

    waiting = threading.Thread(target=ask)
    waiting.start()
    while gateway.refuse:
        time.sleep(0.01)
    machine.stop()
    waiting.join(5)
    assert not waiting.is_alive()
    assert errors == [502]


def test_the_lease_is_kept_alive_and_its_loss_is_noticed(gateway: _Gateway) -> None:
    gateway.seconds = 0.6
    machine = _machine(gateway)
    machine.start()
    time.sleep(1.0)
    assert gateway.renewed >= 2
    assert machine.health() is None
    gateway.leases.clear()
    time.sleep(0.5)
    assert "lost" in (machine.health() or "")
    machine.stop()


def test_a_renewal_that_finds_the_cluster_full_is_tried_again(gateway: _Gateway) -> None:
    gateway.seconds = 1.5
    machine = _machine(gateway)
    machine.start()
    gateway.refuse = [(429, "")]
    time.sleep(1.6)
    assert machine.health() is None
    assert gateway.renewed >= 1
    machine.stop()


def test_what_is_no_use_to_wait_for_is_said_at_once(gateway: _Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gateway_http.TOKEN_VARIABLE, "wrong")
    with pytest.raises(InfrastructureError, match="refuses the token"):
        _machine(gateway).start()
    gateway.refuse = [(500, "")]
    monkeypatch.setenv(gateway_http.TOKEN_VARIABLE, TOKEN)
    with pytest.raises(InfrastructureError, match="status 500"):
        _machine(gateway).start()
    with pytest.raises(InfrastructureError, match="does not answer"):
        GatewayMachine({"url": "http://127.0.0.1:1"}).start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs url"),
        ({"url": "ftp://host"}, "needs url"),
        ({"url": "http://sandboxes.example.com"}, "in the clear"),
        ({"url": "https://sandboxes.example.com", "token": "x"}, "no option 'token'"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gateway_http.TOKEN_VARIABLE, TOKEN)
    with pytest.raises(ConfigError, match=message):
        GatewayMachine(options)


def test_a_token_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gateway_http.TOKEN_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=gateway_http.TOKEN_VARIABLE):
        GatewayMachine({"url": "https://sandboxes.example.com"})


def test_waits_grow_with_jitter_and_never_undercut_what_was_asked() -> None:
    waits: list[float] = []
    calls = iter([0.0, 0.0, 0.0, 0.0, 30.0])

    def work() -> str:
        for asked in calls:
            raise BusyError("full", asked)
        return "done"

    assert parked(work, 1e9, waits.append) == "done"
    assert len(waits) == 5
    assert all(0 <= wait <= 2**attempt for attempt, wait in enumerate(waits[:4]))
    assert waits[4] >= 30.0
    assert len(set(waits)) == 5


def test_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < gateway_http._seconds(soon) <= 30
    assert gateway_http._seconds("7") == 7
    assert gateway_http._seconds("") == gateway_http._seconds("later") == 0
