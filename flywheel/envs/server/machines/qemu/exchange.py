"""A USB stick that the host writes before it is plugged in, and reads while the guest writes to it.

FAT is what every system reads and writes. The stick is plugged in after the machine has booted and pulled out before it
reverts, so no snapshot of the machine holds it, and the guest sees what people do with sticks: it caches nothing stale.
What is read is what the guest has flushed: `sync` in Linux; Windows writes through to removable disks. Its bytes are
the guest's, so mtools reads them, in a process of its own; nothing is mounted.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from flywheel.envs.server.machines.qemu.qmp import Qmp, QmpError
from flywheel.envs.server.machines.qemu.tools import run
from flywheel.errors import InfrastructureError

LABEL = "FLYWHEEL"
TAG_FILE = "FLYWHEEL.TAG"  # by which a guest finds the stick among its drives
MEGABYTES = 32

_ENVIRONMENT = {"MTOOLSRC": "/dev/null", "MTOOLS_SKIP_CHECK": "1", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def name_problem(name: str) -> str | None:
    """None for a plain file name that FAT can hold, else one sentence."""
    if name.strip(". ") and name.isprintable() and len(name) < 100 and not set(name) & set('/\\:*?"<>|'):
        return None
    return f"{name!r} cannot name a file on a FAT disk; use letters, digits, . and -."


class Exchange:
    """One guest's stick; at most one is plugged in."""

    def __init__(self, qmp: Qmp, folder: Path) -> None:
        self._qmp = qmp
        self._folder = folder
        self._image = folder / "stick.img"
        self._inserted = False

    def insert(self, files: Mapping[str, bytes]) -> None:
        """Plug in a new stick with these files in its root; the guest needs a second or so to see it.

        Raises `InfrastructureError` when a name is not a plain file name, or together they are too large.
        """
        self.eject()
        self._mtools("mformat", "-C", "-v", LABEL, "-T", str(MEGABYTES * 2048), "::")
        for name, data in {TAG_FILE: b"", **files}.items():
            if problem := name_problem(name):
                raise InfrastructureError(problem)
            passing = self._folder / "passing"
            passing.write_bytes(data)
            try:
                self._mtools("mcopy", str(passing), f"::{name}")
            finally:
                passing.unlink()
        file = {"driver": "file", "filename": str(self._image)}
        node = {"node-name": "stick", "driver": "raw", "file": file, "cache": {"no-flush": True}}
        self._qmp.execute("blockdev-add", node)
        self._inserted = True
        stick = {"driver": "usb-storage", "id": "stick", "drive": "stick", "bus": "usb.0", "removable": True}
        self._qmp.execute("device_add", stick)

    def names(self) -> set[str]:
        """Files in the root, in capitals: FAT does not tell small letters apart."""
        listing = self._mtools("mdir", "-b", "::").decode(errors="replace")
        return {line.removeprefix("::/").upper() for line in listing.splitlines() if line.startswith("::/")}

    def read(self, name: str) -> bytes:
        """Raises `InfrastructureError` when it is not there."""
        return self._mtools("mcopy", "-n", f"::{name}", "-")

    def eject(self) -> None:
        """Pull it out as it is; what the guest has not flushed is lost. Without a stick nothing happens."""
        if self._inserted:
            with contextlib.suppress(QmpError):  # a guest that was reset may have lost it already
                self._qmp.execute("device_del", {"id": "stick"})
            self._release()
            self._inserted = False
        self._image.unlink(missing_ok=True)

    def _release(self) -> None:
        """The block node is free when the device has gone, which for USB is at once or a moment later."""
        deadline = time.monotonic() + 5.0
        while True:
            try:
                self._qmp.execute("blockdev-del", {"node-name": "stick"})
                return
            except QmpError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _mtools(self, program: str, *arguments: str) -> bytes:
        return run([program, "-i", str(self._image), *arguments], 20, env=_ENVIRONMENT)
