"""Whole families of processes: who belongs to a job, and how to end them so that none is left.

A job leads a session of its own. Its family is every process of that session plus every descendant, also those that
opened a session of their own. What this cannot see: a process in a session of its own whose parent died before it,
while another job runs beside it (the keeper adopts such orphans and ends them when no job is left).
Families are read from `/proc`; where there is none (macOS), only the process group is ended.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class _Stat(NamedTuple):
    parent: int
    session: int
    alive: bool


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Linux only; elsewhere does nothing."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents die. Linux only; elsewhere does nothing."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def family(leader: int) -> set[int]:
    """Live processes of the session that `leader` leads, and all descendants; zombies do not count."""
    table = _process_table()
    members = {pid for pid, stat in table.items() if pid == leader or stat.session == leader}
    grew = True
    while grew:
        born = {pid for pid, stat in table.items() if stat.parent in members} - members
        members |= born
        grew = bool(born)
    return {pid for pid in members if pid in table and table[pid].alive}


def children(parent: int) -> set[int]:
    """Live direct children of a process."""
    return {pid for pid, stat in _process_table().items() if stat.parent == parent and stat.alive}


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read (of a pidfd: until its process has ended); False when there is not.

    Unlike `select.select` it takes descriptors from 1024 on: weights shared between processes hold one a tensor.
    """
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(seconds * 1000))


def send(pids: set[int], number: int) -> None:
    """Send a signal to each; those that are gone already are fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_family(leader: int, patience: float = 5.0) -> set[int]:
    """SIGKILL the family until none is left; returns who still lives after `patience` seconds (normally nobody).

    Looks again after each round, because a process may have forked between the look and the kill.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    seen: set[int] = set()
    deadline = time.monotonic() + patience
    while True:
        seen |= family(leader)
        living = {pid for pid in seen if is_alive(pid)}
        if not living or time.monotonic() > deadline:
            return living
        send(living, signal.SIGKILL)
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    stat = _read_stat(pid)
    return stat is not None and stat.alive


def _process_table() -> dict[int, _Stat]:
    proc = Path("/proc")
    if not proc.is_dir():
        return {}
    found = ((int(entry), _read_stat(int(entry))) for entry in os.listdir(proc) if entry.isdigit())
    return {pid: stat for pid, stat in found if stat is not None}


def _read_stat(pid: int) -> _Stat | None:
    """Fields 3 (state), 4 (parent) and 6 (session) of proc(5) `stat`; the name before them may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, _group, session = file.read().rpartition(b")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(int(parent), int(session), state not in (b"Z", b"X"))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0)
