"""Limits on a whole desktop, through cgroups v1 or v2, where they can be written.

The new groups are children of the worker's own, so they stay inside whatever limit the worker has. In v2 a group that
holds processes cannot hand controllers to children; then a sibling is made, if the parent hands them down.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

V1 = frozenset({"memory", "pids", "cpu"})
"""`cpu` is for its equal shares: a busy neighbour gets no more than the others."""


YOUNG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Groups made for one desktop; empty where none can be written."""

    folders: tuple[Path, ...] = ()
    memory: bool = False

    @property
    def joins(self) -> tuple[str, ...]:
        """Files that a process writes 0 to in order to enter."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def remove(self, seconds: float = 5.0) -> None:
        """Kill what is left in them and remove them; a group is busy until its last process is gone."""
        remove(self.folders, seconds)


def plan(name: str, mounts: str = "", own: str = "") -> list[Path]:
    """Where groups of that name would be made. `mounts` and `own` are the texts of /proc/self/{mountinfo,cgroup}."""
    mounts = mounts or Path("/proc/self/mountinfo").read_text()
    own = own or Path("/proc/self/cgroup").read_text()
    lines = [line.split(":", 2) for line in own.splitlines()]
    by_controller = {controller: path for _, names, path in lines for controller in names.split(",")}
    planned = []
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = (*rest.split(" ", 2), "", "")[:3]
        root, point = fields.split()[3:5]
        names = V1 & set(options.split(",")) if kind == "cgroup" else {""} if kind == "cgroup2" else set()
        for controller in names & by_controller.keys():
            here = Path(point, os.path.relpath(by_controller[controller], root))
            parent = here if kind == "cgroup" else _handing_down(here, Path(point))
            if parent is not None and os.access(parent, os.W_OK) and parent / name not in planned:
                planned.append(parent / name)
    return planned


def _handing_down(here: Path, top: Path) -> Path | None:
    """The v2 group under which a new one has memory and pids limits: the own one or its parent."""
    for folder in (here, here.parent):
        if folder == top.parent:
            return None
        try:
            if {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split()):
                return folder
        except OSError:
            continue
    return None


def create(planned: list[Path], memory_bytes: int, pids: int) -> Limits:
    """Make the groups and set their limits; a group that refuses is left out."""
    made, memory = [], False
    for folder in planned:
        try:
            folder.mkdir()
        except OSError:
            continue
        made.append(folder)
        _set(folder / "pids.max", pids)
        memory |= _set(folder / "memory.limit_in_bytes", memory_bytes) or _set(folder / "memory.max", memory_bytes)
        # A group competes as one process at nice 0 whatever is in it, so the worker's niceness is passed on.
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        _set(folder / "cpu.weight.nice", nice)
        _set(folder / "cpu.shares", max(2, round(1024 / 1.25**nice)))
        # Without these two the limit would only push the desktop into the swap.
        _set(folder / "memory.memsw.limit_in_bytes", memory_bytes)
        _set(folder / "memory.swap.max", 0)
    return Limits(tuple(made), memory)


def _set(path: Path, value: int) -> bool:
    try:
        with path.open("r+") as file:
            file.write(str(value))
    except OSError:
        return False
    return True


def members(folders: tuple[Path, ...] | list[Path]) -> set[int]:
    """Process ids inside. Those of another pid namespace read as 0, which `kill` would take for our own group."""
    found: set[int] = set()
    for folder in folders:
        try:
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        except OSError:
            continue
    return found - {0}


def remove(folders: tuple[Path, ...] | list[Path], seconds: float = 5.0) -> None:
    """See `Limits.remove`."""
    deadline = time.monotonic() + seconds
    left = [folder for folder in folders if folder.exists()]
    while left:
        for pid in members(left):
            _kill(pid)
        left = [folder for folder in left if not _rmdir(folder)]
        if left and time.monotonic() > deadline:
            return
        if left:
            time.sleep(0.005)


def sweep(prefix: str) -> None:
    """Remove empty groups of that prefix, whose session folder is gone so that nobody knows of them any more.

    A group that is being made is empty as well, but not for a minute; one with processes cannot be removed.
    """
    for parent in {folder.parent for folder in plan(prefix)}:
        for folder in parent.glob(f"{prefix}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > YOUNG_SECONDS:
                    _rmdir(folder)


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
