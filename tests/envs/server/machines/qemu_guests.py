"""Guests for the tests: one that fits into a boot sector, and the console guest that `images.py` builds."""

import base64
import shutil
from pathlib import Path

import pytest

from flywheel.envs.server.machines.qemu.images import GUEST_FILE, build_console_guest
from flywheel.envs.server.machines.qemu.machine import QemuMachine
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.envs.server.places import cache_root

# A 16-bit program in a boot sector. It prints the text that it finds in the second sector and then "ready", and echoes
# every character typed; Enter writes what was typed to the second sector. All that is printed goes to COM1 as well.
_BOOT_SECTOR = base64.b64decode(
    "+jHAjtiOwI7QvAB8+/yIFgB+uAECuwCAuQIAMPbNE74AgOg5AL5/fOgzAL8AgDDkzRaEwHT4PA10BqroKwDr7jDAqrgBA7sAgLkCADD2ihYAfs0T"
    "sAroEAC/AIDr0KyEwHQF6AMA6/bDULQOuwcAzRC6/QPsqCB0+1i6+APuw3JlYWR5DQoA"
)

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "mcopy", "mformat", "setpriv")

needs_qemu = pytest.mark.skipif(
    any(shutil.which(program) is None for program in PROGRAMS),
    reason="needs the Debian packages qemu-system-x86, qemu-utils and mtools",
)


def boot_sector_image(folder: Path) -> Path:
    """A raw disk of 1 MB; it boots in half a second under software emulation."""
    image = folder / "base.raw"
    image.write_bytes(_BOOT_SECTOR.ljust(510, b"\0") + b"\x55\xaa" + bytes(2047 * 512))
    return image


def boot_sector_options(folder: Path, **changes: object) -> QemuOptions:
    values: dict[str, object] = {
        "image": str(boot_sector_image(folder)),
        "format": "raw",
        "accelerator": "tcg",
        "memory_mb": 32,
        "cpus": 1,
        "ports": [],
        "ready": "serial",
        "ready_text": "ready",
        "boot_timeout_s": 30,
        "key_interval_s": 0.02,
    }
    return QemuOptions.from_json(values | changes)


def printed(machine: QemuMachine) -> str:
    """What the guest has sent over its serial port since the last call."""
    encoded = machine.monitor.execute("ringbuf-read", {"device": "serial", "size": 65536, "format": "base64"})
    return base64.b64decode(encoded).decode("latin-1")


def console_guest(build: bool) -> Path:
    """Its `guest.json`; skips the test where it was not built yet and `build` is false (70 MB of packages)."""
    folder = cache_root() / "qemu" / "console"
    if not build and not (folder / GUEST_FILE).exists():
        pytest.skip(f"{folder} holds no guest yet; make test-desktop builds it")
    return build_console_guest(folder)
