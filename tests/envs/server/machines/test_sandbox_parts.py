"""What the sandbox is made of, part by part: cgroup places, sessions, uids, shims, names of applications."""

import fcntl
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flywheel.envs.server.machines.xvfb import cgroups
from flywheel.envs.server.machines.xvfb.apps import APPS, canonical, installed_apps
from flywheel.envs.server.machines.xvfb.boot import line_ended
from flywheel.envs.server.machines.xvfb.options import XvfbOptions
from flywheel.envs.server.machines.xvfb.session import Session, abandoned
from flywheel.envs.server.machines.xvfb.shims import write_shims
from flywheel.envs.server.machines.xvfb.uids import UIDS, claim_uid, try_claim
from flywheel.errors import ConfigError


def v2_tree(top: Path, handed_down: str) -> Path:
    own = top / "user.slice" / "worker"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("")
    (own.parent / "cgroup.subtree_control").write_text(handed_down)
    (top / "cgroup.subtree_control").write_text("cpu memory pids")
    return own


def test_v2_makes_a_sibling_where_the_parent_hands_controllers_down(tmp_path: Path) -> None:
    own = v2_tree(tmp_path, "cpu memory pids")
    mounts = f"30 23 0:26 / {tmp_path} rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
    planned = cgroups.plan("xvfb-1", mounts, "0::/user.slice/worker")
    assert planned == [own.parent / "xvfb-1"]


def test_v2_inside_a_container_whose_root_is_mounted_deeper(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")
    mounts = f"30 23 0:26 /docker/abc {tmp_path} rw,relatime - cgroup2 cgroup2 rw"
    assert cgroups.plan("xvfb-1", mounts, "0::/docker/abc") == [tmp_path / "xvfb-1"]


def test_v2_without_controllers_is_left_alone(tmp_path: Path) -> None:
    own = v2_tree(tmp_path / "top", "cpu")
    mounts = f"30 23 0:26 /user.slice {own.parent} rw - cgroup2 cgroup2 rw"
    assert cgroups.plan("xvfb-1", mounts, "0::/user.slice/worker") == []


def test_v1_takes_the_three_controllers_and_keeps_inside_the_own_group(tmp_path: Path) -> None:
    for name in ("memory/box", "pids", "cpu,cpuacct", "devices"):
        (tmp_path / name).mkdir(parents=True)
    mounts = "\n".join(
        f"3{n} 23 0:2{n} / {tmp_path}/{name} rw - cgroup cgroup rw,{name}"
        for n, name in enumerate(("memory", "pids", "cpu,cpuacct", "devices"))
    )
    own = "4:memory:/box\n3:pids:/\n2:cpu,cpuacct:/\n1:devices:/\n0::/"
    assert cgroups.plan("xvfb-1", mounts, own) == [
        tmp_path / "memory/box/xvfb-1",
        tmp_path / "pids/xvfb-1",
        tmp_path / "cpu,cpuacct/xvfb-1",
    ]


def test_real_groups_are_made_limited_and_removed_with_what_is_in_them() -> None:
    planned = cgroups.plan(f"xvfb-test-{os.getpid()}")
    limits = cgroups.create(planned, 64 << 20, 32)
    if not limits.folders:
        pytest.skip("no cgroup can be written here")
    shares = [path / "cpu.shares" for path in limits.folders if (path / "cpu.shares").exists()]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert all(int(path.read_text()) == max(2, round(1024 / 1.25**nice)) for path in shares)
    enter = " ".join(f"echo 0 > {path};" for path in limits.joins)
    with subprocess.Popen(["sh", "-c", f"{enter} exec sleep 60"]) as sleeper:
        while not all(sleeper.pid in cgroups.members([folder]) for folder in limits.folders):
            assert sleeper.poll() is None
        limits.remove()
    assert sleeper.returncode == -9
    assert not any(folder.exists() for folder in limits.folders)


def test_a_sweep_takes_old_empty_groups_only() -> None:
    prefix = f"xvfb-sweep-{os.getpid()}-"
    old, young, busy = (cgroups.create(cgroups.plan(prefix + name), 64 << 20, 32) for name in ("old", "young", "busy"))
    if not old.folders:
        pytest.skip("no cgroup can be written here")
    enter = " ".join(f"echo 0 > {path};" for path in busy.joins)
    with subprocess.Popen(["sh", "-c", f"{enter} exec sleep 60"]) as sleeper:
        while not all(sleeper.pid in cgroups.members([folder]) for folder in busy.folders):
            assert sleeper.poll() is None
        for folder in (*old.folders, *busy.folders):
            os.utime(folder, (0, 0))
        cgroups.sweep(prefix)
        assert not any(folder.exists() for folder in old.folders)
        assert all(folder.exists() for folder in (*young.folders, *busy.folders))
        busy.remove()
        young.remove()


def test_a_session_is_abandoned_only_when_its_owner_is_gone(tmp_path: Path) -> None:
    session = Session.claim(tmp_path)
    session.remember([Path("/sys/fs/cgroup/x")])
    lock = tmp_path / f"{session.id}.lock"
    with abandoned(lock) as left:
        assert left is None
    assert session.folder.is_dir()
    os.close(session._lock)  # what the kernel does at the owner's end
    with abandoned(lock) as left:
        assert left is not None
        assert left[1] == [Path("/sys/fs/cgroup/x")]
    assert list(tmp_path.iterdir()) == []
    with abandoned(lock) as left:
        assert left is None


def test_a_lock_that_was_reaped_before_it_could_be_taken_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    swept = []

    def flock(fd: int, how: int) -> None:
        if not swept:
            swept.append(next(tmp_path.glob("*.lock")))
            swept[0].unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    session = Session.claim(tmp_path)
    assert session.id != swept[0].stem
    assert (tmp_path / f"{session.id}.lock").exists()
    session.remove()
    assert list(tmp_path.iterdir()) == []


def test_uids_are_claimed_once_at_a_time() -> None:
    first, second = claim_uid(), claim_uid()
    assert first.number != second.number
    assert {first.number, second.number} <= set(UIDS)
    assert try_claim(first.number) is None
    first.release()
    again = try_claim(first.number)
    assert again is not None
    again.release()
    second.release()


@pytest.fixture
def shims(tmp_path: Path) -> Path:
    usr_bin = tmp_path / "usr"
    usr_bin.mkdir()
    for name in ("chromium", "xterm", "mousepad", "python3"):
        (usr_bin / name).touch()
    (tmp_path / "bin").mkdir()
    write_shims(tmp_path / "bin", usr_bin)
    return tmp_path / "bin"


def test_shims_stand_in_only_for_what_is_there(shims: Path) -> None:
    names = {path.name for path in shims.iterdir()}
    assert {"google-chrome", "chromium", "gnome-terminal", "gedit", "sudo", "python"} <= names
    assert "nautilus" not in names, "pcmanfm is not installed"


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["-S", "echo", "hi"], "hi"),
        (["-S", "-u", "root", "echo", "hi"], "hi"),
        (["-S", "-k", "--", "echo", "-n"], ""),
        (["-S", "-p", "", "A=1", "sh", "-c", "echo $A"], "1"),
        (["-S"], ""),
    ],
)
def test_sudo_reads_the_password_and_runs_the_command(shims: Path, arguments: list[str], printed: str) -> None:
    said = subprocess.run([shims / "sudo", *arguments], input="password\nrest\n", capture_output=True, text=True)
    assert said.stdout.strip() == printed
    assert said.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--", "bash", "-c", "ls -l"], "<-e><bash><-c><ls -l>/"),
        (["--maximize", "--working-directory=/usr", "--", "top"], "<-maximized><-e><top>/usr"),
        (["-e", "ls -l; bash"], "<-e><sh><-c><ls -l; bash>/"),
        (["--command=top"], "<-e><sh><-c><top>/"),
        (["--full-screen"], "<-fullscreen>/"),
        ([], "/"),
    ],
)
def test_gnome_terminal_in_its_spellings(shims: Path, arguments: list[str], printed: str) -> None:
    xterm = shims / "xterm"
    xterm.write_text("""#!/bin/sh\nfor word do printf '<%s>' "$word"; done; pwd\n""")
    xterm.chmod(0o755)
    environment = {"PATH": f"{shims}:/usr/bin:/bin"}
    command = [shims / "gnome-terminal", *arguments]
    said = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
    assert said.stdout == printed + "\n"


@pytest.mark.parametrize("wrong", [{"screen": (0, 400)}, {"screen": (640, 400, 24)}, {"pids": -1}, {"memory_bytes": 0}])
def test_limits_that_no_desktop_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="positive limits"):
        XvfbOptions(**wrong)


def test_gedit_keeps_operands_and_drops_options(shims: Path) -> None:
    text = (shims / "gedit").read_text().replace("/usr/bin/mousepad", "printf '<%s>'")
    said = subprocess.run(
        ["sh", "-c", text, "gedit", "--new-window", "a b.txt", "+3", "c"], capture_output=True, text=True
    )
    assert said.stdout == "<a b.txt><+3><c>"


def test_xvfb_is_listened_to_until_the_end_of_its_line() -> None:
    """It ends when nobody reads what it writes second; on a busy host that came once in two hundred boots."""
    ready, displayfd = os.pipe()
    os.set_blocking(ready, False)
    with os.fdopen(ready), os.fdopen(displayfd, "wb", 0) as written:
        told = []
        for part in (b"", b"0", b"\n"):
            written.write(part)
            told.append(line_ended(ready))
        written.write(b"1\n")
        told.append(line_ended(ready))
    assert told == [False, False, True, True]


def test_names_of_applications_as_task_files_write_them() -> None:
    spellings = ("libreoffice calc", "Writer", "vscode", "Chrome", "ppt", "gedit", "os")
    assert [canonical(name) for name in spellings] == [
        "libreoffice_calc",
        "libreoffice_writer",
        "vs_code",
        "chrome",
        "libreoffice_impress",
        "text_editor",
        "os",
    ]
    here = installed_apps()
    assert here <= set(APPS)
    assert installed_apps(frozenset({"Calc", "terminal", "picard"})) == here & {"libreoffice_calc", "terminal"}
