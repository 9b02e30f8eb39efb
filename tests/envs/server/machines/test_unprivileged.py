"""The same desktops for a user without any rights: the attacks again, started as that user."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envs.server.machines.attacks import ATTACKS
from tests.envs.server.machines.desks import GUEST_PYTHON, why_not

NOBODY = 54321
needs_desktops = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
EVERY = [attack.__name__ for attack in ATTACKS]
QUICK = ["count_of_processes", "kill_everything", "fill_the_disk", "mount_more_room", "become_root"]
ROOT = Path(__file__).parents[4]


def as_nobody(command: list[str]) -> subprocess.CompletedProcess[str]:
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"] if os.geteuid() == 0 else []
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
    # Through env, because setpriv itself executes with root's right to enter any folder.
    whole = [*drop, "env", *command]
    return subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture
def run_root() -> Iterator[Path]:
    """Not under pytest's own folder, which only the owner may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def attacked(interpreter: list[str], run_root: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    return as_nobody([*interpreter, "-m", "tests.envs.server.machines.attacks", str(run_root), *names])


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


@needs_desktops
@pytest.mark.parametrize("names", [QUICK, pytest.param(EVERY, marks=pytest.mark.desktop)], ids=["quick", "every"])
def test_attacks_are_contained_without_rights(names: list[str], run_root: Path) -> None:
    said = attacked([python()], run_root, names)
    assert said.stdout.split("\n")[:-1] == names, said.stdout + said.stderr
    assert said.returncode == 0, said.stderr


@needs_desktops
def test_root_of_a_namespace_without_other_users_boots_like_a_user(run_root: Path) -> None:
    said = attacked(["unshare", "--user", "--map-root-user", python()], run_root, ["kill_everything"])
    assert said.stdout == "kill_everything\n", said.stdout + said.stderr


@needs_desktops
def test_forbidden_user_namespaces_are_one_sentence_with_the_cure(run_root: Path) -> None:
    forbid = ["sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
    said = attacked(["unshare", "--user", "--map-root-user", *forbid, python()], run_root, ["kill_everything"])
    last = said.stderr.strip().splitlines()[-1]
    assert "InfrastructureError: the desktop did not boot" in last
    assert "sysctl kernel.unprivileged_userns_clone=1" in last
    assert list(run_root.iterdir()) == []
