"""When a guest has booted: its server answers, its serial port says so, or its screen has come to rest."""

import base64
import http.client
import time
from collections.abc import Callable, Iterator

import numpy as np

from flywheel.actions.sendkey_verbs import read_verb
from flywheel.envs.server.machines.qemu.console import Console
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.envs.server.machines.qemu.qmp import Qmp
from flywheel.errors import ActionError, ConfigError, InfrastructureError
from flywheel.types import Action

_POLL_S = 0.1
# A blinking cursor or a clock is less than this share of the pixels, a window that opens is more.
_STILL = 0.002
# A screen of which less is lit shows nothing yet; a line of text in 1280 x 800 lights 0.0005.
_LIT = 0.0002


def wait_until_ready(
    options: QemuOptions, qmp: Qmp, console: Console, server: Callable[[], int], alive: Callable[[], None]
) -> None:
    """Returns when `options.ready` holds and `prepare` is done; raises `InfrastructureError` after `boot_timeout_s`.

    `alive` raises when the machine has ended.
    """
    verbs = prepared(options)
    deadline = time.monotonic() + options.boot_timeout_s
    checks = {"server": _server, "serial": _serial, "screen": _screen}
    for _ in checks[options.ready](options, qmp, console, server):
        alive()
        if time.monotonic() > deadline:
            raise InfrastructureError(f"the guest was not ready ({options.ready}) in {options.boot_timeout_s:.0f} s.")
        time.sleep(_POLL_S)
    for action in verbs:
        console.perform(action)


def prepared(options: QemuOptions) -> list[Action]:
    """The actions of `options.prepare`; raises `ConfigError`."""
    try:
        return [read_verb(verb, options.size) for verb in options.prepare]
    except ActionError as error:
        raise ConfigError(f"prepare of a QEMU machine: {error}") from error


def server_answers(port: int, path: str, timeout: float = 5.0) -> bool:
    """Whether GET answers 200. Any guest port is accepted by QEMU itself, so a connection proves nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _server(options: QemuOptions, _qmp: Qmp, _console: Console, server: Callable[[], int]) -> Iterator[None]:
    while not server_answers(server(), options.ready_path):
        yield


def _serial(options: QemuOptions, qmp: Qmp, _console: Console, _server: Callable[[], int]) -> Iterator[None]:
    wanted, seen = options.ready_text.encode(), b""
    while wanted not in seen:
        yield
        encoded = qmp.execute("ringbuf-read", {"device": "serial", "size": 65536, "format": "base64"})
        seen = seen[-len(wanted) :] + base64.b64decode(encoded)


def _screen(options: QemuOptions, _qmp: Qmp, console: Console, _server: Callable[[], int]) -> Iterator[None]:
    before, since = np.zeros((0, 0, 3), np.uint8), time.monotonic()
    while True:
        now = np.asarray(console.screenshot())
        lit = float((now.max(axis=2) > 32).mean())
        if lit < _LIT or now.shape != before.shape or float((now != before).any(axis=2).mean()) > _STILL:
            before, since = now, time.monotonic()
        elif time.monotonic() - since >= options.settle_s:
            return
        yield
