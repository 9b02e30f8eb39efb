"""Cleaning up after workers that were killed. Desktops of live workers are recognised and left alone."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flywheel.envs.server.machines.xvfb import cgroups
from flywheel.envs.server.machines.xvfb.session import PREFIX, abandoned
from flywheel.envs.server.machines.xvfb.uids import UIDS, can_claim, processes_of, try_claim


def reap(run_root: Path) -> int:
    """Remove what dead workers left anywhere under `run_root`, and on the host; how many desktops that was.

    Processes, cgroups and session folders go by the session's lock, which nobody holds once the worker is dead.
    Processes of the dedicated uids go by the claim on the uid, in the same way. Mounts lie in mount namespaces, which
    end with their processes.
    """
    reaped = 0
    for lock in run_root.rglob(f"{PREFIX}*.lock"):
        with abandoned(lock) as left:
            if left is not None:
                session, groups = left
                _end(partial(_named, session.id))
                cgroups.remove([path for path in groups if path.name == session.id])
                reaped += 1
    cgroups.sweep(PREFIX)
    if can_claim():
        for number in processes_of(UIDS):
            uid = try_claim(number)
            if uid is not None:
                _end(partial(_owned, number))
                uid.release()
    return reaped


def _owned(uid: int) -> list[int]:
    return processes_of(range(uid, uid + 1)).get(uid, [])


def _named(name: str) -> list[int]:
    """Processes with the session's name in their command line: the sandbox's first two."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if b"bwrap" in words and name.encode() in words:
                    found.append(int(entry.name))
    return found


def _end(find: Callable[[], list[int]], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while (left := find()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
