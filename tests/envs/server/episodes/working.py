"""A worker process as the supervisor starts it, and a guest server that says what a test wants."""

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flywheel.datasets.task_files import task_from_json
from flywheel.envs.base import ObserveOptions
from flywheel.envs.server.machines.xvfb.apps import missing_packages
from flywheel.envs.server.places import guest_python, server_python
from flywheel.envs.wire import (
    action_to_json,
    capabilities_from_json,
    decode_observation,
    decode_result,
    encode_frame,
    error_from_json,
    frame_head,
    options_to_json,
    task_to_json,
)
from flywheel.types import Action, Observation, Screenshot, Size, StepResult, Task

SOURCE = Path(__file__).parents[4]
OSWORLD = SOURCE.parent / "shared" / "osworld" / "examples"

needs_workers = pytest.mark.skipif(not server_python().exists(), reason="needs `flywheel desktops setup`")


def why_no_desktop() -> str | None:
    """Why no real desktop can boot here, for skipping."""
    if not (server_python().exists() and guest_python().exists()):
        return "needs `flywheel desktops setup`"
    packages = missing_packages()
    return f"needs apt-get install {' '.join(packages)}" if packages else None


needs_desktops = pytest.mark.skipif(bool(why_no_desktop()), reason=why_no_desktop() or "")


class Working:
    """The other end of a worker's socket; its errors are raised here as they were there."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def start(self) -> Any:
        head, _ = frame_head(self._call("start"))
        return capabilities_from_json(head["capabilities"])

    def reset(self, task: Task, options: ObserveOptions | None = None) -> Observation:
        told = {"task": task_to_json(task), "options": options_to_json(options or ObserveOptions(image="jpeg"))}
        return decode_observation(self._call("reset", **told))

    def step(self, action: Action, pause: float | None = 0.0) -> StepResult:
        return decode_result(self._call("step", action=action_to_json(action), pause=pause))

    def evaluate(self) -> float:
        head, _ = frame_head(self._call("evaluate"))
        return float(head["reward"])

    def health(self) -> str | None:
        head, _ = frame_head(self._call("health"))
        return None if head["health"] is None else str(head["health"])

    def recycle(self) -> None:
        self._call("recycle")

    def close(self) -> None:
        self._call("close")

    def _call(self, command: str, **more: Any) -> bytes:
        frame = encode_frame({"command": command, **more})
        self._stream.write(len(frame).to_bytes(8, "big") + frame)
        self._stream.flush()
        size = self._stream.read(8)
        assert len(size) == 8, "the worker died"
        answer: bytes = self._stream.read(int.from_bytes(size, "big"))
        head, _ = frame_head(answer)
        if isinstance(head.get("error"), dict):
            raise error_from_json(head)
        return answer


@contextlib.contextmanager
def working(machine: str, folder: Path, **options: Any) -> Iterator[Working]:
    """An OSWorld worker under the workers' own Python; ended with everything it started."""
    folder.mkdir(exist_ok=True)
    ours, theirs = socket.socketpair()
    told = json.dumps({"folder": str(folder), "desktop": 0, **options})
    command = [str(server_python()), "-m", "flywheel.envs.server.worker", "--episode", "osworld", "--machine", machine]
    command += ["--options", told, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdout=log,
            stderr=log,
        )
    theirs.close()
    try:
        with ours:
            yield Working(ours)
            ours.shutdown(socket.SHUT_RDWR)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def run_as_worker(program: str) -> subprocess.CompletedProcess[str]:
    """A program under the workers' Python."""
    return subprocess.run(
        [str(server_python()), "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def public_task(name: str) -> Task:
    """One of OSWorld's own, by domain and the first letters of its id; skips where they are not there."""
    found = sorted(OSWORLD.glob(f"{name}*.json"))
    if not found:
        pytest.skip("OSWorld's task files are not beside the repository")
    data = json.loads(found[0].read_text())
    return task_from_json(data, found[0].parent.name)


Answer = tuple[int, str, bytes] | tuple[int, str, bytes, dict[str, str]]


@dataclass
class ScriptedGuest:
    """Answers by path: status, media type, body, headers; an iterator gives them in turn. `asked` is what came."""

    answers: dict[str, Answer | Iterator[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    port: int = 0
    connections: list[socket.socket] = field(default_factory=list)

    def hang_up(self) -> None:
        """Close every connection that is open."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def say(self, path: str, told: Any, status: int = 200) -> None:
        self.answers[path] = (status, "application/json", json.dumps(told).encode())


def picture(screen: Size, shade: int) -> bytes:
    """A PNG of one grey."""
    import numpy as np

    return Screenshot.from_array(np.full((screen.height, screen.width, 3), shade, np.uint8)).encode("png").data


def _well(screen: Size) -> dict[str, Answer | Iterator[Answer]]:
    guest = ScriptedGuest()
    guest.say("/v1/health", {"ok": True})
    guest.say("/screen_size", {"width": screen.width, "height": screen.height})
    guest.say("/execute", {"status": "success", "output": "", "error": "", "returncode": 0})
    guest.say("/setup/execute", {"status": "success", "output": "", "error": "", "returncode": 0})
    guest.say("/v1/action", {"status": "success"})
    guest.answers["/v1/screenshot"] = (200, "image/png", picture(screen, 0))
    guest.answers["/platform"] = (200, "text/plain", b"Linux")
    return guest.answers


@contextlib.contextmanager
def scripted_guest() -> Iterator[ScriptedGuest]:
    """A guest server with a screen of 64 x 48 that is well until a test changes its answers."""
    guest = ScriptedGuest(_well(Size(64, 48)))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            guest.asked.append((path, body))
            guest.connections.append(self.connection)
            answer = guest.answers.get(path, (404, "application/json", b"{}"))
            status, media, data, *more = answer if isinstance(answer, tuple) else next(answer)
            if status == 0:  # the guest is gone in the middle of an answer
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(status)
            for name, value in {
                "Content-Type": media,
                "Content-Length": str(len(data)),
                **(more[0] if more else {}),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    guest.port = server.server_address[1]
    try:
        yield guest
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
