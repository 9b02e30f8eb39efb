"""A desktop's life: boots, shows what OSWorld expects, comes back clean, leaves nothing, and dies with its worker."""

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from flywheel.envs.server.machines.xvfb import cgroups
from flywheel.envs.server.machines.xvfb.machine import XvfbMachine
from flywheel.envs.server.machines.xvfb.options import XvfbOptions
from flywheel.envs.server.machines.xvfb.reap import reap
from flywheel.envs.server.machines.xvfb.uids import processes_of, try_claim
from flywheel.envs.server.places import guest_python
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


@pytest.mark.skipif(not guest_python().exists(), reason="needs flywheel desktops setup")
def test_the_guest_server_of_the_house_shows_the_screen(tmp_path: Path) -> None:
    machine = XvfbMachine(XvfbOptions(screen=(800, 600), run_root=tmp_path))
    try:
        machine.start()
        url = f"http://127.0.0.1:{machine.endpoints().server}/screenshot"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert Image.open(io.BytesIO(answer.read())).size == (800, 600)
        assert machine.health() is None
    finally:
        machine.stop()


def taken(run_root: Path) -> dict[str, object]:
    """What desktops take of this process and its surroundings, to compare before and after."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return {
        "children": len(children.stdout.split()) - 1,
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "files": sorted(path.name for path in run_root.iterdir()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def left_on_the_host(name: str, uid: int | None) -> list[object]:
    """What there is still of one desktop; other desktops may be running on this host."""
    left: list[object] = [path for path in cgroups.plan(name) if path.exists()]
    listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True).stdout
    left += [line for line in listed.splitlines() if name in line and not line.startswith("Z")]
    if uid is not None and (claim := try_claim(uid)) is not None:  # claimed already: another's by now
        left += processes_of(range(uid, uid + 1)).get(uid, [])
        claim.release()
    return left


def cycle(run_root: Path, times: int) -> None:
    with booted(run_root) as desk:
        desk.run("true")
    before = taken(run_root)
    for number in range(times):
        with booted(run_root) as desk:
            desk.run("touch ~/x; (sleep 300 &) >/dev/null 2>&1; nohup setsid sleep 300 >/dev/null 2>&1 &")
            if number % 3 == 0:
                desk.revert()
            assert desk._tree is not None
            name, uid = desk._tree.name, desk._tree.uid
            assert left_on_the_host(name, uid), "this way of looking sees a desktop that runs"
        assert left_on_the_host(name, uid) == []
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


def family(pid: int) -> set[int]:
    """The process and all that descend from it, zombies apart, by the host's ids."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True).stdout
    parents = {int(pid): int(ppid) for pid, ppid, stat in map(str.split, listed.splitlines()) if stat[0] != "Z"}
    found, more = set(), {pid}
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in more}
    return found & parents.keys()


def test_a_killed_worker_leaves_no_orphan_and_its_leftovers_are_reaped(tmp_path: Path, desk: Desk) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert int(worker.stdout.readline()) > 0
            assert reap(tmp_path) == 0, "a live worker's desktop is not reaped"
            relatives = family(worker.pid)
        finally:
            worker.send_signal(signal.SIGKILL)
    assert len(relatives) > 8, "the worker, two of bubblewrap, boot.py, and the programs of the desktop"
    deadline = time.monotonic() + 10
    while (left := set().union(*map(family, relatives))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == set()
    name = next(tmp_path.glob("*.lock")).stem
    assert (tmp_path / name).is_dir()
    assert reap(tmp_path.parent) >= 1
    assert list(tmp_path.iterdir()) == []
    assert left_on_the_host(name, None) == []
    assert reap(tmp_path) == 0
    assert desk.health() is None, "the live desktop of this process is not touched"


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
