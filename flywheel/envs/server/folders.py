"""Session folders of running servers, and what is left of those that were killed.

    ROOT/run/<server pid>-<random>/lock           held for as long as the server lives
                                  /backend        kind of its desktops
                                  /<number>.log   what the worker of that desktop printed
                                  /<number>.view  secret of the page that shows it, while somebody watches
                                  /<number>/      session folder of that desktop, the machine's own

A folder whose lock is free belongs to a server that was killed: its desktops are reaped, then it is removed. Whatever
else lies in ROOT/run is somebody else's.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from flywheel.envs.server.backends import BACKENDS

NAME = re.compile(r"\.?\d+-[0-9a-f]{8}")
YOUNG_SECONDS = 60
"""A folder without its final name is being made; older ones were abandoned in the making."""


class RunFolder:
    """The folder of one server. `close` removes it."""

    def __init__(self, root: Path, backend: str) -> None:
        """Raises `OSError` when it cannot be made."""
        runs = root / "run"
        runs.mkdir(parents=True, exist_ok=True)
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        making = runs / f".{name}"
        making.mkdir(mode=0o711)
        self._lock = os.open(making / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (making / "backend").write_text(backend)
        self.path = making.rename(runs / name)
        self._backend = BACKENDS[backend]

    def desktop(self, number: int) -> Path:
        """An empty session folder for a desktop; what its killed worker left is reaped first."""
        folder = self.path / str(number)
        self.reap(number)
        folder.mkdir(mode=0o711)
        return folder

    def log(self, number: int) -> Path:
        return self.path / f"{number}.log"

    def reap(self, number: int) -> None:
        """End what the machine of a desktop left, and remove its session folder."""
        _reap(self.path / str(number), self._backend.reaper())

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def reap_leftovers(root: Path) -> list[str]:
    """Remove the folders of servers that live no more, and end what their machines left; names of the folders."""
    runs = root / "run"
    found = [folder for folder in runs.iterdir() if NAME.fullmatch(folder.name)] if runs.is_dir() else []
    return [folder.name for folder in found if _reap_server(folder)]


def _reap_server(folder: Path) -> bool:
    if folder.name.startswith(".") and time.time() - folder.stat().st_mtime < YOUNG_SECONDS:
        return False
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kind = folder / "backend"
        backend = BACKENDS.get(kind.read_text() if kind.exists() else "")
        for desktop in folder.iterdir():
            if desktop.is_dir() and backend is not None:
                _reap(desktop, backend.reaper())
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _reap(folder: Path, reaper: Callable[[Path], None]) -> None:
    if folder.exists():
        reaper(folder)
        shutil.rmtree(folder, ignore_errors=True)
