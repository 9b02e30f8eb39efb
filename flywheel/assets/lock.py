"""One driver a home: who holds the lock runs the flywheel, everybody else leaves it alone."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from flywheel.errors import PartitionBusyError
from flywheel.workspace import Workspace


@contextmanager
def driving(workspace: Workspace) -> Iterator[None]:
    """Hold the home for this process. The lock goes with the process. Raises `PartitionBusyError`."""
    path = workspace.config.home_path / "driver.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise PartitionBusyError(
                f"Process {lock.read() or '?'} is already running a flywheel in {path.parent}; wait for it, stop it, "
                "or take another folder with --set home=FOLDER."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def driver_at_work(workspace: Workspace) -> bool:
    """Whether some process drives the flywheel of this home."""
    path = workspace.config.home_path / "driver.lock"
    if not path.exists():
        return False
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
