"""desktop-env's own providers (docker, vmware, virtualbox, aws, azure, aliyun, volcengine) as a machine.

What a provider needs is its own affair: a docker engine and an image of 11 GB, `vmrun`, an account of a cloud. Its
manager may download that image when no `path_to_vm` is given. Runs under the workers' Python, which has desktop-env.
"""

import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from flywheel.envs.server.machines.base import Endpoints, refuse_unknown
from flywheel.envs.server.machines.remote import RemoteMachine
from flywheel.errors import InfrastructureError

PORTS = (5000, 9222, 8006, 8080)  # server, chromium, vnc, vlc: what DesktopEnv assumes when a provider names none
_DEFAULTS: dict[str, Any] = {
    "provider": "docker",
    "region": "",
    "path_to_vm": "",
    "snapshot": "init_state",
    "os_type": "Ubuntu",
    "headless": True,
    "screen": (1920, 1080),
}


class StockMachine:
    """A `Machine` that a provider of desktop-env runs.

    Args:
        options: `provider`, `region`, `path_to_vm` (the manager finds one when empty), `snapshot`, `os_type`,
            `headless`, `screen`. Raises `ConfigError` for any other.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_unknown("A stock machine", options, _DEFAULTS)
        self._options = {**_DEFAULTS, **options}
        self._manager: Any = None
        self._provider: Any = None
        self._path = str(self._options["path_to_vm"])
        self._endpoints: Endpoints | None = None

    def start(self) -> None:
        self._ask("start", self._start)

    def endpoints(self) -> Endpoints:
        if self._endpoints is None:
            raise InfrastructureError("The machine is not started; start it first.")
        return self._endpoints

    def revert(self) -> None:
        if self._endpoints is None:
            self.start()
        else:
            self._ask("revert", self._revert)

    def stop(self) -> None:
        if self._provider is not None and self._path:
            with contextlib.suppress(Exception):  # providers raise when the machine is gone already
                self._provider.stop_emulator(self._path)
        self._endpoints = None

    def health(self) -> str | None:
        where = self._endpoints
        if where is None:
            return "The machine is not started."
        ports = {"server": where.server, "chromium": where.chromium, "vnc": where.vnc, "vlc": where.vlc}
        return RemoteMachine({"host": where.host, **ports}).health()

    def _start(self) -> None:
        region = self._options["region"] or None
        if self._provider is None:
            providers = importlib.import_module("desktop_env.providers")
            self._manager, self._provider = providers.create_vm_manager_and_provider(self._options["provider"], region)
        if not self._path:
            self._path = self._manager.get_vm_path(
                os_type=self._options["os_type"], region=region, screen_size=tuple(self._options["screen"])
            )
        self._boot()

    def _boot(self) -> None:
        self._provider.start_emulator(self._path, self._options["headless"], self._options["os_type"])
        host, *given = str(self._provider.get_ip_address(self._path)).split(":")
        ports = [int(port) for port in given] + list(PORTS[len(given) :])
        self._endpoints = Endpoints(host, *ports)

    def _revert(self) -> None:
        """As DesktopEnv does: some providers revert in place, some stop, some make another machine with a new path."""
        moved = self._provider.revert_to_snapshot(self._path, self._options["snapshot"])
        if moved and moved != self._path:
            self._path = str(moved)
        self._boot()

    def _ask(self, what: str, work: Callable[[], None]) -> None:
        """A provider raises whatever its SDK raises; all of it means that there is no machine."""
        try:
            work()
        except Exception as error:
            self.stop()
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise InfrastructureError(
                f"desktop-env's provider {self._options['provider']} could not {what} the machine: {reason}"
            ) from error
