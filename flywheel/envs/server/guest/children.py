"""Child processes: run with a time limit and an output cap, or launched and left alone.

Each child leads a session of its own, and is killed with its process group when it hangs. Its pipes are drained to the
end even after the answer went out, because an app that inherited them must not die of a broken pipe.
"""

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

OUTPUT_LIMIT = 4 * 2**20
"""Bytes kept of each stream; the rest is read and dropped."""
TIMED_OUT = 124
"""The return code of a child that was killed for its time, as timeout(1) has it."""
APP_GRACE = 1.0
"""Seconds after which a child that shows a window counts as an app and is left running."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a child. `detached` says that it still runs, because it is an app."""

    output: str
    error: str
    returncode: int
    timed_out: bool = False
    detached: bool = False


class Keeper:
    """Reaps launched children and drains pipes that outlived their child, on one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._streams: list[Any] = []
        threading.Thread(target=self._work, name="keeper", daemon=True).start()

    def keep(self, child: subprocess.Popen[bytes], streams: Sequence[Any] = ()) -> None:
        with self._lock:
            self._children.append(child)
            self._streams += streams

    def _work(self) -> None:
        while True:
            time.sleep(0.2)
            with self._lock:
                self._children = [child for child in self._children if child.poll() is None]
                self._streams = [stream for stream in self._streams if _drain(stream, None)]


class Children:
    """Args: `is_app` tells whether a process of a session shows a window."""

    def __init__(self, is_app: Callable[[int], bool]) -> None:
        self._is_app = is_app
        self._keeper = Keeper()
        self._waited_for: set[subprocess.Popen[bytes]] = set()

    def close(self) -> None:
        """Kill those that are being waited for, so that their threads end."""
        for child in list(self._waited_for):
            _kill(child)

    def launch(self, command: Sequence[str] | str, *, shell: bool = False) -> None:
        """Start and return; raises `OSError` when it cannot be started."""
        child = subprocess.Popen(
            command,
            shell=shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
        )
        self._keeper.keep(child)

    def run(
        self, command: Sequence[str] | str, seconds: float, *, shell: bool = False, merge: bool = False, cwd: str = ""
    ) -> Outcome:
        """Wait for the end, but not for those who inherited its pipes; `merge` puts errors into the output.

        Raises `OSError` when it cannot be started.
        """
        child = subprocess.Popen(
            command,
            shell=shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            start_new_session=True,
            cwd=cwd or None,
            env=_environment(),
        )
        streams = {stream: bytearray() for stream in (child.stdout, child.stderr) if stream is not None}
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
        self._waited_for.add(child)
        try:
            ended = self._watch(child, streams, seconds)
        finally:
            self._waited_for.discard(child)
        if ended == "timed out":
            _kill(child)
            child.wait()
        open_streams = [stream for stream, kept in streams.items() if _drain(stream, kept)]
        if open_streams or child.returncode is None:
            self._keeper.keep(child, open_streams)
        texts = [bytes(kept).decode("utf-8", "replace") for kept in streams.values()]
        output, error = texts if len(texts) == 2 else (texts[0], "")
        code = {"timed out": TIMED_OUT, "app": 0}.get(ended, child.returncode)
        return Outcome(output, error, code, ended == "timed out", ended == "app")

    def _watch(self, child: subprocess.Popen[bytes], streams: dict[Any, bytearray], seconds: float) -> str:
        """Read until the child "exited", "timed out", or turned out to be an "app"."""
        started = time.monotonic()
        shown_at, look_at = 0.0, started + 0.2
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            for stream, kept in streams.items():
                selector.register(stream, selectors.EVENT_READ, kept)
            tick = 0.1 if _watch_exit(child, selector, stack) else 0.02
            while child.poll() is None:
                now = time.monotonic()
                if now - started > seconds:
                    return "timed out"
                if now >= look_at:
                    look_at = now + min(1.0, max(0.2, (now - started) / 5))  # rarer for those that compute for long
                    shown_at = (shown_at or now) if self._is_app(child.pid) else 0.0
                    if shown_at and now - shown_at > APP_GRACE:
                        return "app"
                for key, _ in selector.select(tick):
                    if key.data is not None and not _drain(key.fileobj, key.data):
                        selector.unregister(key.fileobj)
        return "exited"


def _watch_exit(child: subprocess.Popen[bytes], selector: selectors.BaseSelector, stack: contextlib.ExitStack) -> bool:
    """Wake the selector when the child ends; False where the kernel cannot, and it has to be looked at often."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except OSError:
        return False
    stack.callback(os.close, descriptor)
    selector.register(descriptor, selectors.EVENT_READ, None)
    return True


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)


def _drain(stream: Any, kept: bytearray | None) -> bool:
    """Read what is there, keeping `OUTPUT_LIMIT` bytes at most; False, and the stream closed, at its end."""
    for _ in range(64):
        if stream.closed:
            return False
        try:
            data = os.read(stream.fileno(), 65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            stream.close()
            return False
        if kept is not None:
            kept += data[: OUTPUT_LIMIT - len(kept)]
    return True


def _environment() -> dict[str, str]:
    """The server's own, without the path to its code."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def command_line(command: object, *, shell: bool) -> list[str] | str:
    """A command as `subprocess` wants it, `~/` expanded in its words; raises `ValueError` on anything else."""
    if isinstance(command, str) and command.strip():
        return command if shell else [_expanded(word) for word in shlex.split(command)]
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        return [_expanded(word) for word in command]
    raise ValueError("The field `command` must be a command line or a list of words.")


def _expanded(word: str) -> str:
    return os.path.expanduser(word) if word.startswith("~/") else word
