"""Real desktops for tests; the standard library only, because an unprivileged Python runs it as well."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from flywheel.envs.server.machines.xvfb.apps import missing_packages
from flywheel.envs.server.machines.xvfb.machine import XvfbMachine
from flywheel.envs.server.machines.xvfb.options import MIB, XvfbOptions

GUEST_PYTHON = Path("/usr/bin/python3")
SMALL = XvfbOptions(
    screen=(640, 400),
    memory_bytes=320 * MIB,
    pids=150,
    tmpfs_bytes=24 * MIB,
    guest=Path(__file__).with_name("stand_in"),
    guest_python=GUEST_PYTHON,
)


class Said(NamedTuple):
    output: str
    error: str
    code: int


class Desk(XvfbMachine):
    """A machine with a way to run commands in it: the stand-in guest's /execute."""

    def run(self, command: str | list[str]) -> Said:
        url = f"http://127.0.0.1:{self.endpoints().server}/execute"
        request = urllib.request.Request(url, json.dumps({"command": command}).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = json.load(answer)
        return Said(said["output"], said["error"], said["returncode"])

    def python(self, program: str) -> Said:
        return self.run([str(GUEST_PYTHON), "-c", program])


def why_not() -> str | None:
    """Why no desktop can boot here, for skipping."""
    if packages := missing_packages():
        return f"needs apt-get install {' '.join(packages)}"
    return None if GUEST_PYTHON.exists() else f"needs {GUEST_PYTHON}"


@contextlib.contextmanager
def booted(run_root: Path, options: XvfbOptions = SMALL) -> Iterator[Desk]:
    desk = Desk(replace(options, run_root=run_root))
    try:
        desk.start()
        yield desk
    finally:
        desk.stop()
