"""The first program inside the sandbox: brings the desktop up, watches it, and answers the worker.

It runs under the guest's Python and imports nothing of flywheel. When a program of the desktop ends, or the worker goes
away (the control socket reads end-of-file), it ends as well, and the sandbox with it.

Control socket: a SOCK_SEQPACKET pair, one JSON object for each packet, at most 64 KiB.

    -> {"event": "ready"} or {"event": "failed", "why": sentence}         once, unasked
    <- {"id", "do": "connect", "port"}   -> {"id"} with a connected TCP socket attached, or {"id", "error"}
    <- {"id", "do": "check"}             -> {"id"}, or {"id", "error": what keeps the desktop from working}
    <- {"id", "do": "view", "port"}      -> {"id"} once x11vnc listens there, or {"id", "error"}

Handing over connected sockets keeps this process out of the way of the data: the worker holds the guest's end itself.
"""

import array
import contextlib
import json
import os
import resource
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOME = Path("/home/user")
RUNTIME = Path("/run/user/1000")
SKELETON = Path("/opt/flywheel/home")
BUS = RUNTIME / "bus"
WM_MARK = RUNTIME / "openbox"
FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
GUEST_PORT = 5000


class BootError(Exception):
    """What did not come up, as a sentence."""


def limit(pids: int, file_bytes: int, data_bytes: int) -> None:
    """Caps that no child can raise. Set in here, the process cap counts this desktop's processes only (Linux 5.14)."""
    resource.setrlimit(resource.RLIMIT_NPROC, (pids, pids))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if data_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def make_home() -> None:
    shutil.copytree(SKELETON, HOME, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for name in FOLDERS:
        (HOME / name).mkdir(exist_ok=True)
    # python-xlib prints a warning to standard output without a cookie, which breaks the getters that read it.
    cookie = os.urandom(16)
    fields = (socket.gethostname().encode(), b"0", b"MIT-MAGIC-COOKIE-1", cookie)
    family_local = struct.pack(">H", 256)
    entry = family_local + b"".join(struct.pack(">H", len(field)) + field for field in fields)
    (HOME / ".Xauthority").write_bytes(entry)
    (HOME / ".Xauthority").chmod(0o600)


class Desktop:
    """The programs of the desktop, each with the log that says why it ended."""

    def __init__(self) -> None:
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        (RUNTIME / "log").mkdir()

    def spawn(self, name: str, command: list[str], pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        with (RUNTIME / "log" / name).open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds, cwd=HOME
            )

    def start(self, name: str, command: list[str], pass_fds: tuple[int, ...] = ()) -> None:
        """A program whose end is the end of the desktop."""
        self.programs[name] = self.spawn(name, command, pass_fds)

    def ended(self) -> str | None:
        for name, program in self.programs.items():
            if program.poll() is not None:
                return f"{name} has ended ({program.returncode}){self.last_words(name)}"
        return None

    def last_words(self, name: str) -> str:
        lines = (RUNTIME / "log" / name).read_bytes()[-2000:].decode(errors="replace").split("\n")
        said = " / ".join(line.strip() for line in lines if line.strip())[-300:]
        return f": {said}" if said else ""

    def wait(self, what: str, ready: Any, deadline: float) -> None:
        while not ready():
            if (end := self.ended()) is not None:
                raise BootError(end)
            if time.monotonic() > deadline:
                raise BootError(f"{what} did not come up in time")
            time.sleep(0.008)


def bring_up(desktop: Desktop, screen: str, deadline: float) -> None:
    """X and the bus side by side, then all that needs both side by side."""
    ready, displayfd = os.pipe()
    command = f"Xvfb :0 -screen 0 {screen}x24 -displayfd {displayfd} -auth {HOME}/.Xauthority -nolisten tcp -noreset"
    desktop.start("Xvfb", [*command.split(), "-s", "0", "-dpms", "-dpi", "96", "-extension", "GLX"], (displayfd,))
    os.close(displayfd)
    desktop.start("dbus-daemon", ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address=unix:path={BUS}"])
    os.set_blocking(ready, False)
    desktop.wait("Xvfb", lambda: line_ended(ready), deadline)
    desktop.wait("dbus-daemon", BUS.exists, deadline)
    os.close(ready)
    # Without -P a file such as ~/token.py would stand in for the module that the guest server means.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    desktop.start("guest", [sys.executable, *safe, "-m", "guest", "--host", "127.0.0.1", "--port", str(GUEST_PORT)])
    desktop.start("openbox", ["openbox", "--sm-disable", "--startup", f"touch {WM_MARK}"])
    # With --a11y applications publish their widgets from the first window on.
    desktop.start("at-spi", ["/usr/libexec/at-spi-bus-launcher", "--launch-immediately", "--a11y=1"])
    desktop.wait("openbox", WM_MARK.exists, deadline)
    desktop.wait("the guest server", lambda: listens(GUEST_PORT), deadline)


def line_ended(fd: int) -> bool:
    """Xvfb writes the number and the line break one after the other, and ends if nobody is there to read the second."""
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 16).endswith(b"\n")
    return False


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ailment() -> str | None:
    """What keeps new applications from starting, although the programs of the desktop run."""
    for path in (HOME / ".Xauthority", HOME / "Desktop", Path("/tmp/.X11-unix/X0"), BUS):
        if not path.exists():
            return f"{path} is gone"
    for folder in (HOME, Path("/tmp")):
        room = os.statvfs(folder)
        if room.f_bavail * 100 < room.f_blocks:
            return f"the disk under {folder} is full"
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    tasks = sum(count_threads(name) for name in os.listdir("/proc") if name.isdigit())
    if tasks > 0.9 * most:
        return f"{tasks} of at most {most} processes are running"
    try:
        subprocess.run(["/bin/true"], check=True, timeout=3)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no new process can be started ({error})"
    return None


def count_threads(pid: str) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


class Control:
    """The worker's requests, one after another."""

    def __init__(self, channel: socket.socket, desktop: Desktop) -> None:
        self.channel = channel
        self.desktop = desktop
        self.viewer: subprocess.Popen[bytes] | None = None

    def say(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.channel.sendmsg([json.dumps(message).encode()], attached)

    def answer(self) -> bool:
        """One request; False when the worker is gone."""
        packet = self.channel.recv(65536)
        if not packet:
            return False
        request = json.loads(packet)
        reply: dict[str, Any] = {"id": request["id"]}
        if request["do"] == "connect":
            self.connect(reply, request["port"])
            return True
        error = ailment() if request["do"] == "check" else self.view(request["port"])
        if error is not None:
            reply["error"] = error
        self.say(reply)
        return True

    def connect(self, reply: dict[str, Any], port: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as made:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.say(reply, (made.fileno(),))
        except OSError as error:
            self.say(reply | {"error": str(error)})

    def view(self, port: int) -> str | None:
        """Start x11vnc unless it runs already."""
        if self.viewer is None or self.viewer.poll() is not None:
            command = ["x11vnc", "-display", ":0", "-viewonly", "-forever", "-shared", "-nopw", "-localhost", "-quiet"]
            self.viewer = self.desktop.spawn("x11vnc", [*command, "-rfbport", str(port), "-no6"])
        for _ in range(400):
            if listens(port):
                return None
            if self.viewer.poll() is not None:
                break
            time.sleep(0.01)
        return f"x11vnc did not come up{self.desktop.last_words('x11vnc')}"


def watch(control: Control, desktop: Desktop) -> None:
    """Answer until the worker goes away or a program ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(control.channel, selectors.EVENT_READ)
        for program in desktop.programs.values():
            selector.register(os.pidfd_open(program.pid), selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control.channel:
                    raise BootError(desktop.ended() or "a program of the desktop has ended")
                if not control.answer():
                    return


def main() -> int:
    given = json.loads(sys.argv[1])
    desktop = Desktop()
    with socket.socket(fileno=given["control"]) as channel:
        channel.set_inheritable(False)
        control = Control(channel, desktop)
        try:
            limit(given["pids"], given["file_bytes"], given["data_bytes"])
            make_home()
            bring_up(desktop, given["screen"], time.monotonic() + given["seconds"])
            control.say({"event": "ready"})
            watch(control, desktop)
        except (BootError, OSError) as error:
            with contextlib.suppress(OSError):
                control.say({"event": "failed", "why": str(error)})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
