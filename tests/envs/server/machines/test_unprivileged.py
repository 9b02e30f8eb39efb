"""The same desktops for a user without any rights: the attacks again, started as that user."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.envs.server.machines.attacks import ATTACKS
from tests.envs.server.machines.desks import GUEST_PYTHON, why_not

NOBODY = 54321
EVERY = [attack.__name__ for attack in ATTACKS]
QUICK = ["count_of_processes", "kill_everything", "fill_the_disk", "mount_more_room", "become_root"]
ROOT = Path(__file__).parents[4]


def as_nobody(command: list[str]) -> subprocess.CompletedProcess[str]:
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"] if os.geteuid() == 0 else []
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([*drop, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


def python() -> str:
    """One that anybody may run and that is new enough."""
    for candidate in (sys.executable, str(GUEST_PYTHON)):
        try:
            said = as_nobody([candidate, "-c", "import sys, tests.envs.server.machines.attacks; print('fine')"])
        except OSError:
            continue
        if said.stdout == "fine\n":
            return candidate
    pytest.skip("no Python that an unprivileged user may run can import this repository")


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("names", [QUICK, pytest.param(EVERY, marks=pytest.mark.desktop)], ids=["quick", "every"])
def test_attacks_are_contained_without_rights(names: list[str]) -> None:
    run_root = Path("/tmp", f"flywheel-test-{os.getpid()}")
    run_root.mkdir()
    run_root.chmod(0o777)
    try:
        said = as_nobody([python(), "-m", "tests.envs.server.machines.attacks", str(run_root), *names])
        left = list(run_root.iterdir())
    finally:
        shutil.rmtree(run_root)
    assert said.stdout.split("\n")[:-1] == names, said.stdout + said.stderr
    assert said.returncode == 0, said.stderr
    assert left == []
