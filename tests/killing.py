"""Run a function in a real child process, and kill it with SIGKILL whenever one likes."""

import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable
from typing import Any

CONTEXT: Any = mp.get_context("fork")


def in_child(work: Callable[[], Any], kill_after: float | None = None) -> Any:
    """What `work` returns in a fork of this process; None when it was killed after so many seconds."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=lambda: theirs.send(work()))
    process.start()
    theirs.close()
    if kill_after is not None and not ours.poll(kill_after):
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return ours.recv() if process.exitcode == 0 else None


def until_done(work: Callable[[], Any], delays: Callable[[int], float]) -> tuple[Any, int]:
    """Start it, kill it, start it again; what it returned in the end and how often it was killed."""
    kills, deadline = 0, time.monotonic() + 60
    while time.monotonic() < deadline:
        found = in_child(work, delays(kills))
        if found is not None:
            return found, kills
        kills += 1
    raise TimeoutError("it never finished")


def commit_suicide(*_: Any, **__: Any) -> None:
    """In place of a function in whose middle a process is to die."""
    os.kill(os.getpid(), signal.SIGKILL)
