"""A desktop's life: boots, shows what OSWorld expects, comes back clean, leaves nothing, and dies with its worker."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.envs.server.machines.xvfb import cgroups
from flywheel.envs.server.machines.xvfb.machine import XvfbMachine
from flywheel.envs.server.machines.xvfb.reap import reap
from flywheel.envs.server.machines.xvfb.uids import UIDS, processes_of
from flywheel.errors import InfrastructureError
from tests.envs.server.machines.desks import SMALL, Desk, booted, why_not
from tests.envs.server.machines.test_pump import first_byte

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with booted(tmp_path_factory.mktemp("run")) as made:
        yield made


def test_it_looks_like_osworlds_machine(desk: Desk) -> None:
    assert desk.run("whoami; pwd; hostname; echo $DISPLAY").output.split() == [
        "user",
        "/home/user",
        "user-virtual-machine",
        ":0",
    ]
    assert "Desktop Documents Downloads" in " ".join(desk.run("ls").output.split())
    assert "640x400" in desk.run("xdpyinfo | grep dimensions").output
    assert "Openbox" in desk.run("wmctrl -m").output


def test_accessibility_is_up_before_the_first_application(desk: Desk) -> None:
    said = desk.python("import pyatspi; print([app.name for app in pyatspi.Registry.getDesktop(0)])")
    assert said.code == 0, said.error
    enabled = "gdbus call --session -d org.a11y.Bus -o /org/a11y/bus -m org.freedesktop.DBus.Properties.Get"
    assert "true" in desk.run(f"{enabled} org.a11y.Status IsEnabled").output


@pytest.mark.skipif(not Path("/usr/bin/xterm").exists(), reason="needs apt-get install xterm wmctrl")
def test_a_shim_opens_a_real_window(desk: Desk) -> None:
    desk.run("gnome-terminal -- sh -c 'echo $PWD > ~/where; sleep 20' >/dev/null 2>&1 &")
    windows = desk.run(
        "for i in $(seq 50); do wmctrl -lx | grep -q xterm && break; sleep 0.1; done; wmctrl -lx; cat ~/where"
    )
    assert "xterm" in windows.output
    assert windows.output.endswith("/home/user\n")
    desk.run("pkill xterm")


def test_revert_is_a_clean_desktop_on_the_same_ports(desk: Desk) -> None:
    before = desk.endpoints()
    desk.run("touch ~/Desktop/x /tmp/x")
    desk.revert()
    assert desk.endpoints() == before
    assert desk.run("ls ~/Desktop /tmp/x").output == "/home/user/Desktop:\n"
    assert desk.health() is None


def test_a_port_nobody_listens_on_refuses(desk: Desk) -> None:
    with pytest.raises(ConnectionResetError):
        first_byte(desk.endpoints().chromium)


def test_chromiums_port_leads_into_the_guest(desk: Desk) -> None:
    serve = "python3 -m http.server 9222 --bind 127.0.0.1 >/dev/null 2>&1"
    desk.run(f"cd /tmp && echo page > index.html && ({serve} &) ; sleep 1")
    with socket.create_connection(("127.0.0.1", desk.endpoints().chromium), timeout=5) as client:
        client.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: client.recv(4096), b"")).endswith(b"page\n")


@pytest.mark.skipif(not Path("/usr/bin/x11vnc").exists(), reason="needs apt-get install x11vnc")
def test_the_viewer_speaks_vnc_and_starts_once(desk: Desk) -> None:
    for _ in range(2):
        desk.start_viewer()
        with socket.create_connection(("127.0.0.1", desk.endpoints().vnc), timeout=5) as client:
            assert client.recv(12).startswith(b"RFB 003.")
    assert desk.run("pgrep -c x11vnc").output == "1\n"


def test_limits_are_set_on_the_whole_desktop(desk: Desk) -> None:
    assert desk.run("prlimit --nproc --output SOFT --noheadings").output.strip() == "150"
    if any("memory" in str(path) for path in cgroups.plan("unused")):
        assert desk._tree is not None
        groups = [path for path in cgroups.plan(desk._tree.name) if "memory" in str(path)]
        assert (groups[0] / "memory.limit_in_bytes").read_text().strip() == str(SMALL.memory_bytes)


def test_two_starts_and_early_calls_are_refused_in_a_sentence(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="running already"):
        desk.start()
    desk.run("true")
    fresh = XvfbMachine(replace(SMALL, run_root=tmp_path))
    assert "not running" in str(fresh.health())
    with pytest.raises(InfrastructureError, match="has not been started"):
        fresh.endpoints()
    fresh.stop()


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match=r"run `apt-get install .*bubblewrap.*xvfb"):
        XvfbMachine(SMALL).start()


def test_a_guest_that_does_not_come_up_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "guest").mkdir()
    (tmp_path / "guest" / "__main__.py").write_text("raise SystemExit('no screen to be had')")
    machine = XvfbMachine(replace(SMALL, run_root=tmp_path / "run", guest=tmp_path / "guest"))
    with pytest.raises(InfrastructureError, match=r"guest has ended.*no screen to be had"):
        machine.start()
    assert list((tmp_path / "run").iterdir()) == []


def taken(run_root: Path) -> dict[str, object]:
    """What a desktop takes from the host, to compare before and after."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return {
        "children": len(children.stdout.split()) - 1,
        "uids": processes_of(UIDS) if os.geteuid() == 0 else {},
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "files": sorted(path.name for path in run_root.iterdir()),
        "cgroups": [sorted(path.parent.glob("xvfb-*")) for path in cgroups.plan("unused")],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def cycle(run_root: Path, times: int) -> None:
    with booted(run_root) as desk:
        desk.run("true")
    before = taken(run_root)
    for number in range(times):
        with booted(run_root) as desk:
            desk.run("touch ~/x; (sleep 300 &) >/dev/null 2>&1; nohup setsid sleep 300 >/dev/null 2>&1 &")
            if number % 3 == 0:
                desk.revert()
    assert taken(run_root) == before


def test_twenty_desktops_leave_nothing(tmp_path: Path) -> None:
    cycle(tmp_path, 20)


@pytest.mark.desktop
def test_two_hundred_desktops_leave_nothing(tmp_path: Path) -> None:
    cycle(tmp_path, 200)


WORKER = """
import sys, time
from pathlib import Path
from tests.envs.server.machines.desks import booted
with booted(Path(sys.argv[1])) as desk:
    desk.run("nohup setsid sleep 300 >/dev/null 2>&1 &")
    print(desk.endpoints().server, flush=True)
    time.sleep(300)
"""


def sandboxes() -> list[int]:
    """Host processes of any desktop: bubblewrap's own and what runs in them."""
    listed = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True).stdout
    names = ("bwrap --info-fd", "boot.py", "sleep 300", "Xvfb :0 -screen 0 640x400")
    lines = (line.split(maxsplit=2) for line in listed.splitlines())
    return sorted(int(pid) for pid, stat, args in lines if "Z" not in stat and any(name in args for name in names))


def test_a_killed_worker_leaves_no_orphan_and_its_leftovers_are_reaped(tmp_path: Path, desk: Desk) -> None:
    before = sandboxes()
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as worker:
        assert worker.stdout is not None
        assert int(worker.stdout.readline()) > 0
        assert len(sandboxes()) > len(before) + 2
        assert reap(tmp_path) == 0, "a live worker's desktop is not reaped"
        assert len(sandboxes()) > len(before) + 2
        worker.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while sandboxes() != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sandboxes() == before
    assert len(list(tmp_path.iterdir())) == 2, "a folder and a lock are left"
    groups = [sorted(path.parent.glob("xvfb-*")) for path in cgroups.plan("unused")]
    assert reap(tmp_path.parent) >= 1
    assert list(tmp_path.iterdir()) == []
    assert [len(now) for now in _groups()] == [len(then) - 1 for then in groups]
    assert reap(tmp_path) == 0
    assert desk.health() is None, "the live desktop of this process is not touched"


def _groups() -> list[list[Path]]:
    return [sorted(path.parent.glob("xvfb-*")) for path in cgroups.plan("unused")]


def test_a_sandbox_that_outlived_its_worker_is_reaped(tmp_path: Path) -> None:
    """As after a worker that died in the moment before the parent-death signal was set: the sandbox runs, unowned."""
    (tmp_path / "owned").mkdir()
    with booted(tmp_path / "owned") as machine:
        lock = next((tmp_path / "owned").glob("*.lock"))
        (tmp_path / "unowned").mkdir()
        (tmp_path / "unowned" / lock.name).write_bytes(lock.read_bytes())  # the same session, its lock held by nobody
        assert reap(tmp_path / "unowned") == 1
        assert "has ended" in str(machine.health())
    assert list((tmp_path / "unowned").iterdir()) == []
