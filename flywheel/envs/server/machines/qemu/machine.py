"""One virtual machine under QEMU: boots an overlay on a base image, reverts to how it booted, leaves nothing.

What keeps an agent in is QEMU, its system call filter and its network without routes; the process runs as the user who
starts it. A guest may fill its overlay up to the size of its disk: give `FLYWHEEL_DESKTOPS` room for that.
"""

import contextlib
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from flywheel.envs.server.machines.base import Endpoints
from flywheel.envs.server.machines.qemu.accelerator import accelerator
from flywheel.envs.server.machines.qemu.agent import GuestAgent
from flywheel.envs.server.machines.qemu.command import DISK, VARS, command
from flywheel.envs.server.machines.qemu.console import Console
from flywheel.envs.server.machines.qemu.disks import check_space, make_disks
from flywheel.envs.server.machines.qemu.exchange import Exchange
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.envs.server.machines.qemu.qmp import Qmp, QmpError
from flywheel.envs.server.machines.qemu.ready import server_answers, wait_until_ready
from flywheel.envs.server.machines.qemu.tools import missing
from flywheel.envs.server.machines.qemu.watching import Watching
from flywheel.errors import InfrastructureError

_SNAPSHOT = "clean"
_SNAPSHOT_TIMEOUT_S = 120.0  # a memory of 8 GB on a slow disk


class QemuMachine:
    """A `Machine`. Besides that it has a `console` (keys, pointer, screen), an `exchange` stick and perhaps an `agent`.

    Args:
        options: see `QemuOptions`.
        folder: the desktop's session folder; the machine's files lie in `folder/qemu` while it runs.
    """

    def __init__(self, options: QemuOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder / "qemu"
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: Qmp | None = None
        self._parts: tuple[Console, Exchange, GuestAgent | None] | None = None
        self._has_snapshot = False
        self._vnc_password = ""
        self._watching: Watching | None = None

    # --- the protocol ----------------------------------------------------------------------------

    def start(self) -> None:
        """Boots, up to `boot_attempts` times; raises `InfrastructureError` with the last attempt's reason."""
        kind = accelerator(self._options.accelerator)
        for program in ("qemu-system-x86_64", "qemu-img", "setpriv", "mcopy"):
            if shutil.which(program) is None:
                raise InfrastructureError(missing(program))
        for attempt in range(1, self._options.boot_attempts + 1):
            try:
                self._boot(kind)
                return
            except InfrastructureError as error:
                self.stop()
                if attempt == self._options.boot_attempts:
                    raise InfrastructureError(
                        f"{self._options.image} did not boot in {attempt} attempt(s), at last because: {error}"
                    ) from error
            except BaseException:
                self.stop()
                raise

    def endpoints(self) -> Endpoints:
        """0 for what the machine does not have; `vnc` is the viewer's port once there is one."""
        found = self._forwards()
        vnc = self.vnc_port() if self._watching is None else self._watching.port
        return Endpoints("127.0.0.1", found.get(5000, 0), found.get(9222, 0), vnc, found.get(8080, 0))

    def revert(self) -> None:
        """To the snapshot, or by booting again where there is none or it does not come back well."""
        self._end_viewer()
        if self._has_snapshot and self.health() is None:
            with contextlib.suppress(InfrastructureError):
                self._load()
                return
        self.stop()
        self.start()

    def stop(self) -> None:
        self._end_viewer()
        if self._qmp is not None:
            self._qmp.close()
        if self._parts is not None and self._parts[2] is not None:
            self._parts[2].close()
        if self._process is not None:
            self._process.kill()  # QEMU starts no processes: its filter forbids it
            self._process.wait()
        self._process = self._qmp = self._parts = None
        self._has_snapshot = False
        shutil.rmtree(self._folder, ignore_errors=True)

    def health(self) -> str | None:
        if self._process is None or self._qmp is None:
            return "The machine is not started."
        if (status := self._process.poll()) is not None:
            return f"QEMU ended with status {status}: {self._last_words()}"
        try:
            state = self._qmp.execute("query-status", timeout=10.0)["status"]
            if state != "running":
                return f"The machine is not running but {state}; a full disk of the host stops it too."
            if self._options.ready == "server" and not server_answers(self._server(), self._options.ready_path):
                return "The server in the guest does not answer."
        except InfrastructureError as error:
            return str(error)
        return None

    def start_viewer(self) -> None:
        """A port that shows the screen and takes no input (see `watching.py`)."""
        if self._options.vnc == "none":
            raise InfrastructureError("this machine has no screen server; leave out its option `vnc`.")
        if self._watching is None:
            self._watching = Watching(self.monitor.vnc_client)

    def _end_viewer(self) -> None:
        if self._watching is not None:
            self._watching.close()
            self._watching = None

    # --- what a guest without a server needs ---------------------------------------------------------

    @property
    def monitor(self) -> Qmp:
        if self._qmp is None:
            raise InfrastructureError("The machine is not started; start it first.")
        return self._qmp

    @property
    def console(self) -> Console:
        return self._running()[0]

    @property
    def exchange(self) -> Exchange:
        return self._running()[1]

    @property
    def agent(self) -> GuestAgent | None:
        return self._running()[2]

    @property
    def has_snapshot(self) -> bool:
        return self._has_snapshot

    def vnc_port(self) -> int:
        """0 without VNC on loopback."""
        if self._options.vnc != "loopback":
            return 0
        return int(self.monitor.execute("query-vnc")["service"])

    @property
    def vnc_password(self) -> str:
        """Of the port; whoever has it can type. People who watch need none."""
        return self._vnc_password

    # --- boot ----------------------------------------------------------------------------------------

    def _boot(self, kind: str) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, mode=0o700)
        check_space(self._folder, self._options.memory_mb)
        make_disks(self._options, self._folder)
        qmp, agent = self._launch(kind)
        console = Console(qmp, self._folder, self._options.key_interval_s, self._options.pointer)
        self._parts = (console, Exchange(qmp, self._folder), agent)
        if self._options.vnc == "loopback":
            self._vnc_password = secrets.token_hex(4)  # VNC takes 8 characters
            qmp.execute("set_password", {"protocol": "vnc", "password": self._vnc_password})
        wait_until_ready(self._options, qmp, console, self._server, self._alive)
        if self._options.revert == "snapshot":
            self._save(qmp)

    def _launch(self, kind: str) -> tuple[Qmp, GuestAgent | None]:
        with contextlib.ExitStack() as theirs:
            ours, monitor = socket.socketpair()
            theirs.callback(monitor.close)
            sockets = [monitor]
            agent = None
            if self._options.agent:
                agent_ours, agent_theirs = socket.socketpair()
                theirs.callback(agent_theirs.close)
                sockets.append(agent_theirs)
                agent = GuestAgent(agent_ours)
            numbers = [end.fileno() for end in sockets]
            log = theirs.enter_context(open(self._folder / "log", "wb"))
            self._process = subprocess.Popen(
                command(self._options, kind, self._folder, numbers[0], numbers[1] if agent else None),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=numbers,
                start_new_session=True,
            )
        try:
            self._qmp = Qmp(ours)
        except InfrastructureError as error:
            ours.close()
            raise InfrastructureError(f"QEMU did not start: {self._last_words() or error}") from error
        return self._qmp, agent

    def _save(self, qmp: Qmp) -> None:
        arguments = {"tag": _SNAPSHOT, "vmstate": DISK, "devices": self._snapshot_devices()}
        try:
            qmp.job("snapshot-save", arguments, _SNAPSHOT_TIMEOUT_S)
        except QmpError:
            return  # a device that cannot be saved: `revert` boots again, as `has_snapshot` says
        self._has_snapshot = True

    def _load(self) -> None:
        self.exchange.eject()
        arguments = {"tag": _SNAPSHOT, "vmstate": DISK, "devices": self._snapshot_devices()}
        self.monitor.job("snapshot-load", arguments, _SNAPSHOT_TIMEOUT_S)
        problem = self.health()
        if problem is not None:
            raise InfrastructureError(problem)

    def _snapshot_devices(self) -> list[str]:
        return [DISK, VARS] if self._options.firmware else [DISK]

    # --- small things --------------------------------------------------------------------------------

    def _forwards(self) -> dict[int, int]:
        """Guest port -> port on the host's loopback."""
        if self._options.network == "none" or not self._options.ports:
            return {}
        table = self.monitor.human("info usernet")
        pairs: Iterator[re.Match[str]] = re.finditer(r"HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)\s+\S+\s+(\d+)", table)
        return {int(found.group(2)): int(found.group(1)) for found in pairs}

    def _server(self) -> int:
        return self._forwards()[self._options.ports[0]]

    def _alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise InfrastructureError(f"QEMU ended while the guest booted: {self._last_words()}")

    def _last_words(self) -> str:
        """The first complaint in QEMU's log; what follows it is usually advice."""
        with contextlib.suppress(OSError):
            lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()
            return next((line[:300] for line in lines if "warning:" not in line), "")
        return ""

    def _running(self) -> tuple[Console, Exchange, GuestAgent | None]:
        if self._parts is None:
            raise InfrastructureError("The machine is not started; start it first.")
        return self._parts
