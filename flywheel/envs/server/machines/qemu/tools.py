"""Runs the small programs that machines are made with (qemu-img, mtools, apt-get): bounded, errors in words."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from flywheel.errors import InfrastructureError

# Which Debian package brings a program; anything else is in a package of its own name.
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mformat": "mtools",
    "mcopy": "mtools",
    "mdir": "mtools",
    "mke2fs": "e2fsprogs",
    "setpriv": "util-linux",
    "apt-get": "apt",
    "apt-cache": "apt",
    "dpkg-deb": "dpkg",
}


def run(command: Sequence[str], timeout: float, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> bytes:
    """Its standard output; raises `InfrastructureError` when it is missing, fails or takes over `timeout` seconds."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout)
    except FileNotFoundError as error:
        raise InfrastructureError(missing(command[0])) from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{command[0]} did not finish in {timeout:.0f} s.") from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split()) or f"status {done.returncode}"
        raise InfrastructureError(f"{' '.join(command[:2])} failed: {words[:300]}")
    return done.stdout


def missing(program: str) -> str:
    return f"There is no {program} on this machine; install the Debian package {PACKAGES.get(program, program)}."
