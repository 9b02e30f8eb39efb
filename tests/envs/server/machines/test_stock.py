"""desktop-env's providers passed through, on a provider that keeps its books in a list."""

import http.server
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from flywheel.envs.server.machines.base import Endpoints
from flywheel.envs.server.machines.stock import StockMachine
from flywheel.errors import ConfigError, InfrastructureError


class _Provider:
    """Has the methods of `desktop_env.providers.base.Provider`, and says what was asked of it."""

    def __init__(self, address: str) -> None:
        self.address, self.asked = address, list[tuple[Any, ...]]()
        self.fails = self.moves_to = ""

    def start_emulator(self, path_to_vm: str, headless: bool, os_type: str) -> None:
        self.asked.append(("start", path_to_vm, headless, os_type))
        if self.fails:
            raise TimeoutError(self.fails)

    def get_ip_address(self, path_to_vm: str) -> str:
        return self.address

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        self.asked.append(("revert", path_to_vm, snapshot_name))
        return self.moves_to or path_to_vm

    def stop_emulator(self, path_to_vm: str) -> None:
        self.asked.append(("stop", path_to_vm))


class _Manager:
    def get_vm_path(self, **wanted: Any) -> str:
        return f"{wanted['os_type']}-{wanted['region']}-{wanted['screen_size'][0]}"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> _Provider:
    made = _Provider("10.0.0.7")
    module = types.ModuleType("desktop_env.providers")

    def create(name: str, region: str | None) -> tuple[_Manager, _Provider]:
        if name != "docker":
            raise NotImplementedError(f"{name} not implemented!")
        return _Manager(), made

    vars(module)["create_vm_manager_and_provider"] = create
    monkeypatch.setitem(sys.modules, "desktop_env", types.ModuleType("desktop_env"))
    monkeypatch.setitem(sys.modules, "desktop_env.providers", module)
    return made


@pytest.fixture
def guest() -> Iterator[int]:
    """The port of something that answers as an OSWorld guest does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/platform" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_it_starts_reverts_and_stops_what_the_manager_found(provider: _Provider) -> None:
    machine = StockMachine({"region": "eu", "os_type": "Windows"})
    machine.start()
    assert machine.endpoints() == Endpoints("10.0.0.7", 5000, 9222, 8006, 8080)
    machine.revert()
    machine.stop()
    path = "Windows-eu-1920"
    begun = ("start", path, True, "Windows")
    assert provider.asked == [begun, ("revert", path, "init_state"), begun, ("stop", path)]


def test_ports_that_a_provider_names_are_taken(provider: _Provider) -> None:
    provider.address = "localhost:5001:9223:8007:8081"
    machine = StockMachine({"path_to_vm": "/vm.qcow2", "snapshot": "clean"})
    machine.start()
    assert machine.endpoints() == Endpoints("localhost", 5001, 9223, 8007, 8081)
    assert provider.asked == [("start", "/vm.qcow2", True, "Ubuntu")]


def test_a_machine_that_moves_on_revert_is_followed(provider: _Provider) -> None:
    machine = StockMachine({"path_to_vm": "i-1"})
    machine.start()
    provider.moves_to = "i-2"
    machine.revert()
    machine.stop()
    assert provider.asked[-2:] == [("start", "i-2", True, "Ubuntu"), ("stop", "i-2")]


def test_health_asks_the_guest(provider: _Provider, guest: int) -> None:
    provider.address = f"127.0.0.1:{guest}"
    machine = StockMachine({"path_to_vm": "vm"})
    assert "not started" in (machine.health() or "")
    machine.start()
    assert machine.health() is None
    provider.address = "127.0.0.1:1"
    machine.revert()
    assert "No OSWorld guest" in (machine.health() or "")


def test_whatever_a_provider_raises_is_infrastructure(provider: _Provider) -> None:
    provider.fails = "VM failed to become ready\nwithin timeout period"
    machine = StockMachine({"path_to_vm": "vm"})
    with pytest.raises(InfrastructureError, match="docker could not start the machine: VM failed to become"):
        machine.start()
    with pytest.raises(InfrastructureError, match="not started"):
        machine.endpoints()
    assert provider.asked[-1] == ("stop", "vm")
    with pytest.raises(InfrastructureError, match="parallels not implemented"):
        StockMachine({"provider": "parallels"}).start()
    machine.stop()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="path_to_vm"):
        StockMachine({"image": "vm.qcow2"})
