"""A desktop's folder on the host, and how a later process can tell whether its owner still lives.

    run_root/xvfb-<id>.lock    held (flock) by the worker for as long as it lives; lists the cgroups to remove
    run_root/xvfb-<id>/        what the sandbox mounts read-only

A lock that can be taken belongs to a dead owner. The kernel drops it with the process, so neither a reused process id
nor a clock can mislead. The lock file comes first and goes last: there is no folder without one.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "xvfb-"


class Session:
    """Made by `Session.claim`; `id` is in the command line of the sandbox, which is how leftovers are found."""

    def __init__(self, run_root: Path, name: str, lock: int) -> None:
        self.id = name
        self.folder = run_root / name
        self._path = run_root / f"{name}.lock"
        self._lock = lock

    @classmethod
    def claim(cls, run_root: Path) -> "Session":
        """Raises `OSError` where the folder cannot be written."""
        run_root.mkdir(parents=True, exist_ok=True)
        while True:
            name = PREFIX + secrets.token_hex(6)
            lock = _take(run_root / f"{name}.lock", os.O_CREAT | os.O_EXCL)
            if lock is not None:
                break
        session = cls(run_root, name, lock)
        session.folder.mkdir(mode=0o755)
        return session

    def remember(self, cgroups: list[Path]) -> None:
        """For whoever has to clean up after a worker that could not."""
        os.pwrite(self._lock, json.dumps([str(path) for path in cgroups]).encode(), 0)

    def remove(self) -> None:
        """Folder and lock; safe to call twice."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


@contextmanager
def abandoned(lock_path: Path) -> Iterator[tuple[Session, list[Path]] | None]:
    """The session behind a lock file, with its cgroups, held while it is cleaned up; None when its owner lives."""
    try:
        lock = _take(lock_path, 0)
    except FileNotFoundError:
        lock = None
    if lock is None:
        yield None
        return
    session = Session(lock_path.parent, lock_path.stem, lock)
    try:
        written = os.pread(lock, 1 << 16, 0)
        yield session, [Path(path) for path in json.loads(written or b"[]")]
    finally:
        session.remove()


def _take(path: Path, flags: int) -> int | None:
    """The locked descriptor, or None when another holds it or it was unlinked before it could be locked."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None
