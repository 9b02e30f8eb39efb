"""The machine itself, on a guest of one boot sector: real QEMU, real BIOS, seconds."""

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flywheel.envs.server.machines.base import view_of
from flywheel.envs.server.machines.qemu.accelerator import kvm_problem
from flywheel.envs.server.machines.qemu.machine import QemuMachine
from flywheel.envs.server.machines.qemu.reap import reap
from flywheel.envs.server.machines.qemu.watching import passed_on
from flywheel.errors import ActionError, ConfigError, InfrastructureError
from flywheel.processes import children, is_alive
from flywheel.types import Answer, Click, Key, Type
from tests.envs.server.machines.qemu_guests import boot_sector_image, boot_sector_options, needs_qemu, printed
from tests.envs.server.rfb import Plain, Watched

pytestmark = needs_qemu

_PRINTABLE = "".join(chr(code) for code in range(32, 127))


def running() -> set[int]:
    """QEMU processes of this process; other tests may have left children of other kinds."""
    pids = set()
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError):
            pids |= {pid} if b"qemu-system" in Path(f"/proc/{pid}/cmdline").read_bytes() else set()
    return pids


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[QemuMachine]:
    made = QemuMachine(boot_sector_options(tmp_path), tmp_path / "session")
    made.start()
    yield made
    made.stop()


def _wait_for(machine: QemuMachine, text: str, seconds: float = 10.0) -> str:
    seen, deadline = "", time.monotonic() + seconds
    while text not in seen and time.monotonic() < deadline:
        time.sleep(0.02)
        seen += printed(machine)
    return seen


def _reboot(machine: QemuMachine) -> str:
    machine.console.perform(Key(("ctrl", "alt", "delete")))
    return _wait_for(machine, "ready")


def test_every_printable_character_arrives_as_typed(machine: QemuMachine) -> None:
    machine.console.perform(Type(_PRINTABLE))
    assert _wait_for(machine, "~") == _PRINTABLE


def test_a_fast_typist_loses_no_character(tmp_path: Path) -> None:
    machine = QemuMachine(boot_sector_options(tmp_path, key_interval_s=0.0, revert="overlay"), tmp_path / "session")
    machine.start()
    machine.console.perform(Type(_PRINTABLE * 3 + "\n"))
    assert _wait_for(machine, "\n") == _PRINTABLE * 3 + "\n"
    machine.stop()


def test_characters_and_keys_that_are_not_on_the_keyboard_are_refused_before_anything_is_typed(
    machine: QemuMachine,
) -> None:
    for action in (Type("naïve"), Key(("f13",)), Answer("42")):
        with pytest.raises(ActionError):
            machine.console.perform(action)
    machine.console.perform(Type("."))
    assert _wait_for(machine, ".") == "."


def test_a_machine_without_a_tablet_refuses_the_pointer(tmp_path: Path) -> None:
    machine = QemuMachine(boot_sector_options(tmp_path, pointer=False, revert="overlay"), tmp_path / "session")
    machine.start()
    with pytest.raises(ActionError, match="no pointer"):
        machine.console.perform(Click(1, 1))
    machine.stop()


def test_the_screen_shows_what_is_typed(machine: QemuMachine) -> None:
    before = machine.console.screenshot()
    machine.console.perform(Type("hello"))
    _wait_for(machine, "o")
    time.sleep(0.2)
    after = machine.console.screenshot()
    assert before.size == after.size == (720, 400)
    assert before.tobytes() != after.tobytes()


@pytest.mark.parametrize("bus", ["virtio", "ide", "scsi", "nvme"])
def test_what_a_guest_writes_survives_its_reboot_but_not_a_revert_and_never_reaches_the_base(
    tmp_path: Path, bus: str
) -> None:
    machine = QemuMachine(boot_sector_options(tmp_path, disk_bus=bus), tmp_path / "session")
    base = boot_sector_image(tmp_path)
    before = hashlib.sha256(base.read_bytes()).digest()
    machine.start()
    assert machine.has_snapshot == (bus != "nvme")  # QEMU cannot save its nvme device, so that one boots again
    machine.console.perform(Type("scribble\n"))
    _wait_for(machine, "\n")
    assert "scribble" in _reboot(machine)
    machine.revert()
    assert "scribble" not in _reboot(machine)
    assert machine.health() is None
    machine.stop()
    assert hashlib.sha256(base.read_bytes()).digest() == before


def test_a_snapshot_reverts_many_times_and_quickly(machine: QemuMachine) -> None:
    for attempt in range(5):
        machine.console.perform(Type(f"line {attempt}"))
        began = time.monotonic()
        machine.revert()
        assert time.monotonic() - began < 3.0
    machine.console.perform(Type("x\n"))
    _wait_for(machine, "\n")
    assert _reboot(machine).startswith("xready")  # nothing of what was typed before the reverts


def test_it_can_be_reached_only_over_loopback_and_only_where_asked(tmp_path: Path) -> None:
    options = boot_sector_options(tmp_path, ports=[5000, 9222], revert="overlay")
    machine = QemuMachine(options, tmp_path / "session")
    machine.start()
    endpoints = machine.endpoints()
    assert endpoints.host == "127.0.0.1"
    assert endpoints.vlc == 0
    (process,) = running()
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True).stdout.splitlines()
    ours = {line.split()[3] for line in listening if f"pid={process}," in line}
    assert ours == {f"127.0.0.1:{port}" for port in (endpoints.server, endpoints.chromium, endpoints.vnc)}
    assert "restrict=on" in Path(f"/proc/{process}/cmdline").read_text()
    machine.stop()


def test_vnc_wants_the_password_or_is_a_socket_in_the_session_folder(tmp_path: Path, machine: QemuMachine) -> None:
    assert len(machine.vnc_password) == 8
    assert machine.monitor.execute("query-vnc")["auth"] == "vnc"
    other = QemuMachine(boot_sector_options(tmp_path, vnc="unix", revert="overlay"), tmp_path / "other")
    other.start()
    assert (tmp_path / "other" / "qemu" / "vnc").is_socket()
    assert other.endpoints().vnc == 0
    other.stop()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"vnc": "unix"}, "too long for a socket"), ({"prepare": ["press enter"]}, "prepare of a QEMU machine")],
)
def test_what_is_wrong_with_the_options_is_said_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    machine = QemuMachine(boot_sector_options(tmp_path, **changes), tmp_path / ("x" * 100))
    with pytest.raises(ConfigError, match=message):
        machine.start()
    assert running() == set()
    assert not (tmp_path / ("x" * 100) / "qemu").exists()


def test_a_screen_at_rest_counts_as_booted(tmp_path: Path) -> None:
    options = boot_sector_options(tmp_path, ready="screen", settle_s=1, prepare=["type hello"], revert="overlay")
    machine = QemuMachine(options, tmp_path / "session")
    machine.start()
    assert _wait_for(machine, "hello").endswith("hello")
    machine.stop()


def test_a_guest_that_does_not_boot_is_tried_again_and_then_reported(tmp_path: Path) -> None:
    options = boot_sector_options(tmp_path, ready_text="never printed", boot_timeout_s=0.7, boot_attempts=3)
    machine = QemuMachine(options, tmp_path / "session")
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"did not boot in 3 attempt.*not ready"):
        machine.start()
    assert time.monotonic() - began >= 3 * 0.7
    assert not (tmp_path / "session" / "qemu").exists()
    assert running() == set()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": "/nowhere/base.qcow2"}, "no disk image"),
        ({"machine": "no-such-machine"}, "unsupported machine"),
        ({"format": "qcow2"}, "not in qcow2 format"),
        ({"accelerator": "kvm"}, "KVM is asked for"),
    ],
)
def test_what_cannot_start_says_why(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    if "accelerator" in changes and kvm_problem() is None:
        pytest.skip("KVM works here")
    machine = QemuMachine(boot_sector_options(tmp_path, boot_attempts=1, **changes), tmp_path / "session")
    with pytest.raises(InfrastructureError, match=message):
        machine.start()
    machine.stop()


def test_a_machine_that_is_killed_is_unwell_and_comes_back_by_a_revert(machine: QemuMachine) -> None:
    (process,) = running()
    os.kill(process, signal.SIGKILL)
    time.sleep(0.2)
    assert "QEMU ended" in (machine.health() or "")
    with pytest.raises(InfrastructureError):
        machine.console.screenshot()
    machine.revert()
    assert machine.health() is None
    machine.console.perform(Type("alive"))
    assert _wait_for(machine, "alive").endswith("alive")


def test_a_stopped_guest_is_unwell(machine: QemuMachine) -> None:
    machine.monitor.execute("stop")
    assert "paused" in (machine.health() or "")


def test_stop_leaves_nothing_and_can_be_said_twice(tmp_path: Path) -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    machine = QemuMachine(boot_sector_options(tmp_path), tmp_path / "session")
    machine.start()
    machine.exchange.insert({"a.txt": b"a"})
    machine.stop()
    machine.stop()
    assert "not started" in (machine.health() or "")
    assert list((tmp_path / "session").iterdir()) == []
    assert running() == set()
    assert set(os.listdir("/proc/self/fd")) == descriptors


_OWNER = """
import sys, time
from pathlib import Path
from tests.envs.server.machines.qemu_guests import boot_sector_options
from flywheel.envs.server.machines.qemu.machine import QemuMachine
machine = QemuMachine(boot_sector_options(Path(sys.argv[1])), Path(sys.argv[1]) / "session")
machine.start()
print("up", flush=True)
time.sleep(60)
"""


def test_it_dies_with_its_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    (process,) = children(owner.pid)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 5.0
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(process)


def test_reaping_ends_what_runs_in_the_folder_and_nothing_else(tmp_path: Path, machine: QemuMachine) -> None:
    other = QemuMachine(boot_sector_options(tmp_path), tmp_path / "other")
    other.start()
    reap(tmp_path / "session")
    assert machine.health() is not None
    assert other.health() is None
    other.stop()


def test_the_stick_carries_files_and_is_gone_after_a_revert(machine: QemuMachine) -> None:
    machine.exchange.insert({"Long name.txt": b"text", "b.bin": bytes(range(256))})
    assert machine.exchange.names() == {"FLYWHEEL.TAG", "LONG NAME.TXT", "B.BIN"}
    assert machine.exchange.read("b.bin") == bytes(range(256))
    machine.exchange.insert({})  # another stick instead of the first
    assert machine.exchange.names() == {"FLYWHEEL.TAG"}
    machine.revert()
    with pytest.raises(InfrastructureError):
        machine.exchange.names()


@pytest.mark.parametrize("name", ["", "..", "a/b", "c:x", "*", "nul\0l"])
def test_names_that_fat_cannot_hold_are_refused(machine: QemuMachine, name: str) -> None:
    with pytest.raises(InfrastructureError, match="FAT"):
        machine.exchange.insert({name: b""})


# --- watching --------------------------------------------------------------------------------------------------------


def test_a_watcher_sees_the_screen_and_types_nothing(machine: QemuMachine) -> None:
    port = view_of(machine)
    assert isinstance(port, int)
    assert view_of(machine) == port
    with closing(Plain(port)) as one, closing(Plain(port)) as other:
        watchers = [Watched(one), Watched(other)]
        printed(machine)
        for watched in watchers:
            assert watched.look() == watched.width * watched.height > 0
            watched.press("a")
            watched.point(10, 10)
            watched.look()
        machine.console.perform(Type("b"))
        assert _wait_for(machine, "b") == "b"
        machine.revert()
        for watched in watchers:
            with pytest.raises((AssertionError, OSError)):
                watched.look()
    with pytest.raises(ConnectionRefusedError):
        Plain(port)
    assert isinstance(view_of(machine), int)


def test_a_machine_without_a_screen_server_says_so(tmp_path: Path) -> None:
    made = QemuMachine(boot_sector_options(tmp_path, vnc="none"), tmp_path / "session")
    assert "cannot be shown: this machine has no screen server" in str(view_of(made))


HELLO, OPENED = b"RFB 003.008\n\x01\x00", b"RFB 003.008\n\x01\x01"
"""What a page begins with, and what of it goes on."""


@pytest.mark.parametrize(
    ("says", "goes_on"),
    [
        (HELLO + b"\x04" + bytes(7) + b"\x03" + bytes(9), OPENED + b"\x03" + bytes(9)),
        (HELLO + b"\x02\x00\x00\x02" + bytes(8) + b"\x05" + bytes(5), OPENED + b"\x02\x00\x00\x02" + bytes(8)),
        (
            HELLO + b"\x06" + bytes(3) + b"\xff\xff\xff\xfe" + b"ab" + b"\x00" + bytes(19),
            OPENED + bytes(20),
        ),
        (HELLO + b"\xff\x00" + bytes(10) + b"\xff\x01" + bytes(10), OPENED),
        (HELLO + b"\x06" + bytes(3) + b"\x7f\xff\xff\xff" + bytes(40), OPENED),
        (HELLO + b"\x09" + b"\x04" + bytes(7), OPENED),
        (b"RFB 003.003\n" + bytes(50), b""),
        (b"RFB 003.008\n" + b"\x02" + bytes(50), b"RFB 003.008\n"),
    ],
    ids=["key", "pointer", "clipboard", "own", "endless", "unknown", "old", "password"],
)
def test_what_a_page_says_goes_on_only_where_it_asks_for_pictures(says: bytes, goes_on: bytes) -> None:
    stream, passed = io.BytesIO(says), b""

    def read(count: int) -> bytes:
        data = stream.read(count)
        if len(data) < count:
            raise EOFError
        return data

    with contextlib.suppress(EOFError):
        for message in passed_on(read):
            passed += message
    assert passed == goes_on
