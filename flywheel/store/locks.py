"""Two locks for a partition, both `flock`, so the kernel frees them when their process dies.

`.owner` is held from `begin` to `seal`: one process at a time makes a partition. `.gate` is shared by publishers for
the moment of their link and exclusive for a seal, so that no episode is acknowledged that the seal has missed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flywheel.errors import PartitionBusyError
from flywheel.store.disk import make_dirs

_owned: dict[Path, "_OwnerLock"] = {}
"""Owner locks of this process, whichever store object took them; a forked child finds its parent's here."""


def take(path: Path, partition: str) -> bool:
    """Hold an owner lock; False if this process holds it already.

    Workers that are forked meanwhile keep it alive too: once its taker has died it is free when the last one ends.
    Raises `PartitionBusyError` naming the process that has it.
    """
    if held(path):
        return False
    _owned[path] = _OwnerLock(path, partition)
    return True


def held(path: Path) -> bool:
    """Whether this process, not a parent of it, holds an owner lock."""
    lock = _owned.get(path)
    return lock is not None and lock.pid == os.getpid()


def drop(path: Path) -> None:
    """Free an owner lock of this process; harmless if it has none."""
    if held(path):
        _owned.pop(path).release()


class _OwnerLock:
    def __init__(self, path: Path, partition: str) -> None:
        self._file = os.fdopen(_open(path), "r+b", buffering=0)
        self.pid = os.getpid()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._file.read(32).decode() or "of unknown id"
            self._file.close()
            raise PartitionBusyError(
                f"Partition '{partition}' is held by process {holder}; wait for it to finish or stop it."
            ) from None
        self._file.truncate(0)
        self._file.write(str(self.pid).encode())

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


@contextmanager
def gate(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Waits: publishers hold it for a link, a seal for its whole length."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        make_dirs(path.parent, sync=False)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
