"""A private desktop for tests: Xvfb, openbox, a session bus with at-spi, and the guest server, all real processes."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(os.environ.get("FLYWHEEL_DESKTOPS", Path.home() / ".cache/flywheel/desktops"))
PYTHON = ROOT / "guest-venv/bin/python"
SERVERS = Path(__file__).parents[4] / "flywheel/envs/server"
WIDTH, HEIGHT = 1280, 800


def missing() -> str | None:
    """Why no desktop can be started here, or None."""
    if not PYTHON.exists():
        return f"the guest's virtual environment is missing at {PYTHON}; run `flywheel desktops setup`"
    absent = [name for name in ("Xvfb", "openbox", "dbus-daemon", "xterm", "scrot") if shutil.which(name) is None]
    return f"Debian packages are missing: {', '.join(absent)}" if absent else None


@dataclass
class Desk:
    """A running desktop; `env` is what a program in it sees."""

    env: dict[str, str]
    home: Path
    url: str
    server: subprocess.Popen[bytes] = field(init=False)
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=100))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.client.get(self.url + path, params=params or None)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.client.post(self.url + path, json=body, **more)

    def act(self, kind: str, **fields: Any) -> httpx.Response:
        answer = self.post("/v1/action", {"type": kind, **fields})
        assert answer.status_code == 200, answer.text
        return answer

    def execute(self, code: str) -> dict[str, Any]:
        """As OSWorld's PythonController sends an agent's action."""
        prefix = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
        answer = self.post("/execute", {"command": ["python", "-c", prefix + code], "shell": False})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def start(self, *command: str | Path, **env: str) -> subprocess.Popen[bytes]:
        """A program of the desktop; killed at the end of the test session at the latest."""
        process = subprocess.Popen(
            [str(word) for word in command],
            env=self.env | env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def output(self, *command: str) -> str:
        """What a program of the desktop prints."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False).stdout

    def titles(self) -> list[str]:
        """Of all windows, by wmctrl."""
        parts = [line.split(None, 3) for line in self.output("wmctrl", "-l").splitlines()]
        return [part[3] for part in parts if len(part) == 4]


def children(pid: int) -> list[int]:
    """Of all threads of a process, zombies as well."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with all that it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What `condition` returns as soon as it is truthy."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{condition} did not come true within {seconds} s"
        time.sleep(0.05)
    return value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def xvfb(width: int, height: int, display: str = "") -> tuple[subprocess.Popen[bytes], str]:
    """An X server and its display; without a display it chooses one that is free."""
    read, write = os.pipe()
    screen = ["-screen", "0", f"{width}x{height}x24", "-nolisten", "tcp", "-noreset"]
    command = ["Xvfb", *([display] if display else []), "-displayfd", str(write), *screen]
    process = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(write)
    with os.fdopen(read) as told:
        return process, f":{told.readline().strip()}"


@contextlib.contextmanager
def desktop(home: Path, width: int = WIDTH, height: int = HEIGHT) -> Iterator[Desk]:
    """Boots one and takes all of it away afterwards."""
    home.mkdir(parents=True, exist_ok=True)
    x_server, display = xvfb(width, height)
    port = _free_port()
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    env = kept | {"DISPLAY": display, "HOME": str(home), "XDG_RUNTIME_DIR": str(home), "XDG_SESSION_TYPE": "x11"}
    env |= {"GTK_MODULES": "gail:atk-bridge", "DBUS_SESSION_BUS_ADDRESS": f"unix:path={home}/bus", "LC_ALL": "C.UTF-8"}
    desk = Desk(env, home, f"http://127.0.0.1:{port}", processes=[x_server])
    try:
        desk.start("dbus-daemon", "--session", "--nofork", f"--address={env['DBUS_SESSION_BUS_ADDRESS']}")
        until((home / "bus").exists)
        desk.start("openbox")
        desk.start("/usr/libexec/at-spi-bus-launcher", "--launch-immediately")
        desk.server = desk.start(PYTHON, "-m", "guest", "--port", str(port), PYTHONPATH=str(SERVERS))
        until(lambda: _healthy(desk))
        until(
            lambda: (
                "openbox" in subprocess.run(["wmctrl", "-m"], env=env, capture_output=True, text=True).stdout.lower()
            )
        )
        yield desk
    finally:
        desk.client.close()
        for process in reversed(desk.processes):
            end(process)


def _healthy(desk: Desk) -> bool:
    try:
        return desk.get("/v1/health").status_code == 200
    except httpx.TransportError:
        return False


WITNESS = """
import json, sys
from Xlib import X, XK, display
XK.load_keysym_group("latin1")
d = display.Display()
log = open(sys.argv[1], "a", buffering=1)
root = d.screen().root
mask = (X.ButtonPressMask | X.ButtonReleaseMask | X.PointerMotionMask | X.KeyPressMask | X.KeyReleaseMask
        | X.FocusChangeMask | X.ExposureMask)
window = root.create_window(0, 0, 600, 400, 0, d.screen().root_depth, X.InputOutput, X.CopyFromParent,
                            background_pixel=0x2060a0, event_mask=mask)
window.set_wm_name("witness")
window.set_wm_class("witness", "Witness")
window.map()
colours = (0xff0000, 0x00ff00, 0x0000ff, 0xffffff, 0x123456)
while True:
    event = d.next_event()
    if event.type == X.Expose:
        for index, colour in enumerate(colours):
            window.fill_rectangle(window.create_gc(foreground=colour), 40 + 60 * index, 40, 50, 50)
        at = window.translate_coords(root, 0, 0)
        print(json.dumps({"event": "shown", "x": -at.x, "y": -at.y}), file=log)
    elif event.type == X.MappingNotify:
        d.refresh_keyboard_mapping(event)
    elif event.type in (X.ButtonPress, X.ButtonRelease, X.MotionNotify, X.KeyPress, X.KeyRelease):
        name = {X.ButtonPress: "press", X.ButtonRelease: "release", X.MotionNotify: "motion", X.KeyPress: "key down",
                X.KeyRelease: "key up"}[event.type]
        keysym = d.keycode_to_keysym(event.detail, 1 if event.state & 1 else 0) if "key" in name else 0
        print(json.dumps({"event": name, "x": event.root_x, "y": event.root_y, "detail": event.detail,
                          "state": event.state, "keysym": keysym}), file=log)
"""


class Witness:
    """A plain X window that writes down every event that reaches it."""

    def __init__(self, desk: Desk) -> None:
        self._log = desk.home / f"witness-{time.monotonic_ns()}.jsonl"
        self.process = desk.start(PYTHON, "-c", WITNESS, self._log)
        desk.post("/setup/activate_window", {"window_name": "witness"})  # above what other tests left
        until(lambda: self._log.exists() and self.events("shown"))
        time.sleep(0.3)  # the window manager moves it into its frame
        self.x, self.y = (self.events("shown")[-1][each] for each in ("x", "y"))

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]
        return [each for each in found if not kinds or each["event"] in kinds]

    def clear(self) -> None:
        os.truncate(self._log, 0)
