"""Ends what a killed worker left. QEMU dies with its worker, so only an accident leaves anything."""

import os
import signal
import time
from pathlib import Path

from flywheel.errors import InfrastructureError
from flywheel.processes import is_alive, send

_PATIENCE_S = 5.0


def reap(folder: Path) -> None:
    """Kills every QEMU of this user with a disk in the session folder; its files are the caller's to remove."""
    left = {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _runs_in(int(entry), folder)}
    send(left, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    while any(is_alive(pid) for pid in left):
        if time.monotonic() > deadline:
            raise InfrastructureError(f"QEMU of {folder} does not die; look for a device that hangs.")
        time.sleep(0.005)


def _runs_in(pid: int, folder: Path) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False  # ended meanwhile
    program, _, rest = line.partition(b"\0")
    return os.path.basename(program).startswith(b"qemu-system-") and f"{folder / 'qemu'}/".encode() in rest
