"""Two locks for a partition, both `flock`, so the kernel frees them when their process dies.

`.owner` is held from `begin` to `seal`: one process at a time makes a partition. `.gate` is shared by publishers for
the moment of their rename and exclusive for a seal, so that no episode is acknowledged that the seal has missed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flywheel.errors import PartitionBusyError
from flywheel.store.disk import make_dirs


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        make_dirs(path.parent, sync=False)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class OwnerLock:
    """Held by this object until `release`, until it is collected, or until its process dies.

    Workers that are forked meanwhile hold it too: it is free once none of them is left.
    """

    def __init__(self, path: Path, partition: str) -> None:
        """Raises `PartitionBusyError` naming the process that has it."""
        self._file = os.fdopen(_open(path), "r+b", buffering=0)
        self._pid = os.getpid()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._file.read(32).decode() or "of unknown id"
            self._file.close()
            raise PartitionBusyError(
                f"Partition '{partition}' is held by process {holder}; wait for it to finish or stop it."
            ) from None
        self._file.truncate(0)
        self._file.write(str(self._pid).encode())

    def release(self) -> None:
        """Free it. In a forked child this only lets go of the child's own share."""
        if os.getpid() == self._pid:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


@contextmanager
def gate(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Waits: publishers hold it for a rename, a seal for its whole length."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
