"""The supervisor's side of one worker process: start it, ask it, notice that it died, kill it.

stopped -> starting -> free -> leased -> recycling -> free ...
              broken <- any of them, and from there to starting again
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flywheel.envs.base import Capabilities
from flywheel.envs.server.backends import Backend, Deadlines
from flywheel.envs.server.folders import RunFolder
from flywheel.envs.server.viewer import Viewer
from flywheel.envs.wire import WireError, capabilities_from_json, encode_frame, error_from_json, frame_head
from flywheel.errors import ConfigError, EnvError, InfrastructureError
from flywheel.processes import end_family

State = Literal["stopped", "starting", "free", "leased", "recycling", "broken"]

SOURCE = Path(__file__).parents[3]
"""Where workers find flywheel, which their own environment does not hold."""

MAX_LOG_BYTES = 1 << 20
MAX_FRAME_BYTES = 256 << 20
BUFFER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How the workers of a server are started; they see the server's environment but for `hidden`."""

    backend: Backend
    python: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    @property
    def deadlines(self) -> Deadlines:
        return self.backend.deadlines


class Desktop:
    """One desktop, whatever process plays it at the moment. Lives on the event loop of the server.

    `lost` is set to a sentence when the process died, hung or said that its machine is gone.
    """

    def __init__(self, number: int, spec: WorkerSpec, folder: RunFolder) -> None:
        self.number, self.spec = number, spec
        self.since = time.monotonic()
        self.capabilities: Capabilities | None = None
        self.problem: str | None = None
        self.starts = self.episodes = 0
        self.lost: asyncio.Future[str] = asyncio.Future()
        self._folder = folder
        self._state: State = "stopped"
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._viewer: Viewer | None = None

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state, self.since = state, time.monotonic()

    @property
    def pid(self) -> int | None:
        """Of the worker, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Whether its worker runs, as far as can be known without asking it."""
        return not self.lost.done() and self._process is not None and self._process.poll() is None

    async def start(self) -> Capabilities:
        """Spawn a worker and boot its desktop. Raises `InfrastructureError`; `kill` it then.

        Raises `ConfigError` where its options are to blame, which no other try will mend.
        """
        self.state, self.lost = "starting", asyncio.Future()
        self.starts += 1
        ours, theirs = socket.socketpair()
        try:
            session = await asyncio.to_thread(self._folder.desktop, self.number)
            self._process = self._spawn(theirs, session)
        except OSError as error:
            ours.close()
            raise InfrastructureError(f"The worker of desktop {self.number} cannot be started: {error}.") from error
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=BUFFER_BYTES)
        self._reader_task = asyncio.create_task(self._read(reader))
        head, _ = frame_head(await self.call("start", self.spec.deadlines.start))
        if "unfit" in head:
            raise ConfigError(head["unfit"])
        self.capabilities = capabilities_from_json(head["capabilities"])
        self.problem = None
        return self.capabilities

    def _spawn(self, theirs: socket.socket, session: Path) -> subprocess.Popen[bytes]:
        # Spawned by the event loop's own thread: the kernel kills the worker when the thread that made it ends.
        options = {**self.spec.options, "folder": str(session), "desktop": self.number}
        backend = self.spec.backend
        command = [str(self.spec.python), "-m", "flywheel.envs.server.worker", "--episode", backend.episode]
        command += ["--machine", backend.machine, "--options", json.dumps(options)]
        command += ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        seen = {name: value for name, value in os.environ.items() if name not in self.spec.hidden}
        log = self._folder.log(self.number)
        with log.open("ab") as output:
            if output.tell() > MAX_LOG_BYTES:
                output.truncate(0)
            return subprocess.Popen(
                command,
                env={**seen, "PYTHONPATH": _python_path(), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    async def call(self, command: str, deadline: float, **arguments: Any) -> bytes:
        """The frame that answers a command.

        Raises what the worker said, and `InfrastructureError` when it died or took longer than `deadline` seconds; the
        desktop is then `lost`. One command at a time.
        """
        if self.lost.done() or self._writer is None:
            raise InfrastructureError(self.problem or f"Desktop {self.number} has no worker.")
        if self._answer is not None:
            raise RuntimeError(f"desktop {self.number} was asked to {command} while it was busy")
        self._answer = answer = asyncio.get_running_loop().create_future()
        try:
            frame = encode_frame({"command": command, **arguments})
            self._writer.write(len(frame).to_bytes(8, "big") + frame)
            await asyncio.wait({answer, self.lost}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.lose(f"Desktop {self.number} did not {command} within {deadline:g} seconds; it is replaced.")
                raise InfrastructureError(self.lost.result())
            return self._checked(answer.result())
        finally:
            if not answer.done():
                answer.cancel()
                self.lose(f"Desktop {self.number} was left alone in the middle of a command.")
            self._answer = None

    def _checked(self, frame: bytes) -> bytes:
        try:
            head, _ = frame_head(frame)
        except WireError as error:
            self.lose(f"The worker of desktop {self.number} does not speak the protocol: {error}")
            raise InfrastructureError(self.lost.result()) from error
        if isinstance(head.get("error"), dict):
            raised: EnvError = error_from_json(head)
            if isinstance(raised, InfrastructureError):
                self.lose(str(raised))
            raise raised
        return frame

    async def check(self) -> None:
        """Raises `InfrastructureError` when the desktop is not well."""
        head, _ = frame_head(await self.call("health", self.spec.deadlines.health))
        if head.get("health") is not None:
            self.lose(str(head["health"]))
            raise InfrastructureError(str(head["health"]))

    async def show(self, port: int) -> str:
        """Address of the page that shows a screen server of this desktop's, until `end_view`. Raises `OSError`."""
        if self._viewer is None or not self._viewer.alive or self._viewer.port != port:
            await self.end_view()
            self._viewer = Viewer(port, self._folder.path / f"{self.number}.view")
        return self._viewer.url

    async def end_view(self) -> None:
        """Close the page, if there is one."""
        if self._viewer is not None:
            await asyncio.to_thread(self._viewer.close)
            self._viewer = None

    def lose(self, problem: str) -> None:
        """Give the worker up; it is killed by whoever tends the desktop."""
        if not self.lost.done():
            self.problem = problem
            self.lost.set_result(problem)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(8), "big")
                if size > MAX_FRAME_BYTES:
                    raise ConnectionError("a frame of impossible size")
                frame = await reader.readexactly(size)
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lose(f"The worker of desktop {self.number} died{await asyncio.to_thread(self._last_words)}.")

    def _last_words(self) -> str:
        """Why, as far as its status and its log tell."""
        status: int | None = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(1)
        if status is not None and status < 0:
            return f" of signal {-status}"
        lines = self._folder.log(self.number).read_text(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; the last line of its log is '{said[:200].rstrip('.')}'" if said else ""

    async def stop(self) -> None:
        """Let the worker close its desktop, then make sure that nothing is left of either."""
        if not self.lost.done() and self._answer is None and self._writer is not None:
            with contextlib.suppress(EnvError):
                await self.call("close", self.spec.deadlines.close)
        await self.kill()
        self.state = "stopped"

    async def kill(self) -> None:
        """End the worker's whole family, and what its machine left."""
        self.lose(self.problem or f"Desktop {self.number} was stopped.")
        await self.end_view()
        if self._writer is not None:
            self._writer.close()
        if self._reader_task is not None:
            self._reader_task.cancel()
        process, self._process = self._process, None
        self._writer = self._reader_task = None
        if process is not None:
            await asyncio.to_thread(_end, process)
        await asyncio.to_thread(self._folder.reap, self.number)


def _end(process: subprocess.Popen[bytes]) -> None:
    # Also when the worker itself is dead: what it started may have outlived it in its session.
    end_family(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
