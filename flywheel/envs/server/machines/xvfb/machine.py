"""A real X desktop in a bubblewrap sandbox, ready in about a second, with OSWorld's ports, paths and command names."""

import contextlib
import http.client
import json
import socket
import time

from flywheel.envs.server.machines.base import Endpoints
from flywheel.envs.server.machines.xvfb.apps import installed_apps, missing_packages
from flywheel.envs.server.machines.xvfb.options import XvfbOptions
from flywheel.envs.server.machines.xvfb.pump import Pump
from flywheel.envs.server.machines.xvfb.tree import Tree
from flywheel.errors import InfrastructureError

SERVER, CHROMIUM, VNC, VLC = 5000, 9222, 5900, 8080
HEALTH_SECONDS = 5.0


class XvfbMachine:
    """A `Machine`. Call it from one thread that lives as long as the desktop (see `tree.py`).

    The ports of `endpoints` stay the same from the first `start` to `stop`; a revert cuts their connections. What the
    sandbox does not stop is listed in `sandbox.py`.
    """

    def __init__(self, options: XvfbOptions | None = None) -> None:
        self.options = options or XvfbOptions()
        self._tree: Tree | None = None
        self._pump: Pump | None = None

    @property
    def apps(self) -> frozenset[str]:
        """Applications that can be used in here, by OSWorld's names."""
        return installed_apps(self.options.apps)

    def start(self) -> None:
        """Boot; returns when the guest server answers. Raises `InfrastructureError` and leaves nothing then."""
        _require(self.options)
        if self._tree is not None:
            raise InfrastructureError("this desktop is running already; revert it or stop it first.")
        try:
            if self._pump is None:
                self._pump = Pump((SERVER, CHROMIUM, VNC, VLC), self._connect)
            self._tree = Tree(self.options)
            self._await_guest()
        except BaseException:
            self.stop()
            raise

    def endpoints(self) -> Endpoints:
        """Of this machine, whether it runs or not; `InfrastructureError` before the first start."""
        if self._pump is None:
            raise InfrastructureError("this desktop has not been started, so it has no ports.")
        return Endpoints("127.0.0.1", *(self._pump.port(port) for port in (SERVER, CHROMIUM, VNC, VLC)))

    def revert(self) -> None:
        """Destroy the desktop and boot a fresh one."""
        self._destroy()
        self.start()

    def stop(self) -> None:
        """Leave nothing; safe to call twice, and from any state."""
        self._destroy()
        if self._pump is not None:
            self._pump.close()
            self._pump = None

    def health(self) -> str | None:
        """None when it is well, else one sentence; asks the sandbox and then the guest server, at most 10 s."""
        if self._tree is None:
            return "the desktop is not running; start it."
        if (end := self._tree.ended()) is not None:
            return f"{end}; revert it."
        try:
            ailment = self._tree.control.ask("check", HEALTH_SECONDS)
        except InfrastructureError as error:
            return f"{self._tree.ended() or str(error)}"
        if ailment is not None:
            return f"{ailment}; revert the desktop."
        return self._guest_ailment()

    def start_viewer(self) -> None:
        """Show the desktop, view only, at `endpoints().vnc`. Raises `InfrastructureError`."""
        if self._tree is None:
            raise InfrastructureError("the desktop is not running; start it.")
        if (error := self._tree.control.ask("view", HEALTH_SECONDS, port=VNC)) is not None:
            raise InfrastructureError(f"{error}; run `apt-get install x11vnc` if it is missing.")

    def _connect(self, port: int) -> socket.socket:
        tree = self._tree
        if tree is None:
            raise InfrastructureError("the desktop is not running; start it.")
        return tree.control.connect(port)

    def _destroy(self) -> None:
        tree, self._tree = self._tree, None
        if tree is not None:
            tree.destroy()
        if self._pump is not None:
            self._pump.cut()

    def _await_guest(self) -> None:
        deadline = time.monotonic() + self.options.boot_seconds
        while (ailment := self._guest_ailment()) is not None:
            if self._tree is None or (end := self._tree.ended()) is not None:
                raise InfrastructureError(f"{end}.")
            if time.monotonic() > deadline:
                raise InfrastructureError(f"the desktop did not come up: {ailment}")
            time.sleep(0.01)

    def _guest_ailment(self) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.endpoints().server, timeout=HEALTH_SECONDS)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/v1/health")
                answer = connection.getresponse()
                said = json.loads(answer.read(1 << 16))
            except (OSError, ValueError, http.client.HTTPException) as error:
                return f"the guest server does not answer ({error or type(error).__name__}); revert the desktop."
        if answer.status != 200 or not isinstance(said, dict) or said.get("ok") is not True:
            return f"the guest server says that it is not well ({str(said)[:200]}); revert the desktop."
        return None


def _require(options: XvfbOptions) -> None:
    if packages := missing_packages():
        raise InfrastructureError(f"this host cannot show a desktop; run `apt-get install {' '.join(packages)}`.")
    if not options.guest_python.exists():
        raise InfrastructureError(f"{options.guest_python} is missing; run `flywheel desktops setup`.")
