"""The machine on a Linux guest: network, pointer, stick and guest agent, as a real kernel sees them."""

import http.server
import json
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.envs.server.machines.qemu.machine import QemuMachine
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.envs.server.machines.qemu.readback import read_back
from flywheel.envs.server.machines.qemu.ready import server_answers
from flywheel.types import Click, Drag, Key, Move, Scroll, Type
from tests.envs.server.machines.qemu_guests import console_guest, needs_qemu, printed

pytestmark = [needs_qemu, pytest.mark.desktop]

_SAY_OVER = "echo over > /dev/ttyS0"
_NETWORK = "ifconfig eth0 10.0.2.15 up; route add default gw 10.0.2.2"


def _boot(folder: Path, **changes: object) -> tuple[QemuMachine, QemuOptions]:
    options = QemuOptions.from_json({"guest": str(console_guest(build=True)), **changes})
    machine = QemuMachine(options, folder / "session")
    machine.start()
    return machine, options


def _as_root(machine: QemuMachine, *lines: str) -> None:
    machine.console.perform(Key(("ctrl", "alt", "f2")))
    time.sleep(0.5)
    for line in lines:
        machine.console.perform(Type(line + "\n"))
        time.sleep(0.5)


def _wait_until_over(machine: QemuMachine) -> None:
    deadline, said = time.monotonic() + 60, ""
    while "over" not in said:
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
        said += printed(machine)


def test_the_pointer_arrives_where_it_was_sent(tmp_path: Path) -> None:
    """As the guest's kernel reports it: `struct input_event`, absolute axes of 0 to 32767."""
    machine, options = _boot(tmp_path)
    width, height = machine.console.screenshot().size
    _as_root(machine, "for e in /dev/input/event*; do cat $e > /tmp/${e##*/} & done")
    for action in (
        Move(0, 0),
        Click(width - 1, height - 1, "right"),
        Click(10, 10, keys=("ctrl",), count=2),
        Drag(20, 30, start=(10, 10)),
        Scroll(dy=-2, x=5, y=5),
    ):
        machine.console.perform(action)
    _as_root(machine, "cat /tmp/event* > /tmp/all")
    data = read_back(machine, options, "/tmp/all")
    machine.stop()
    assert data is not None
    events = [struct.unpack("<16xHHi", data[at : at + 24]) for at in range(0, len(data) - 23, 24)]
    axes = [(code, value) for kind, code, value in events if kind == 3 and code in (0, 1)]
    assert (0, 32767) in axes
    assert (1, 32767) in axes
    assert (0, round(20 * 32767 / (width - 1))) in axes
    buttons = [(code, value) for kind, code, value in events if kind == 1 and code >= 0x110]
    assert buttons.count((0x111, 1)) == 1  # right
    assert buttons.count((0x110, 1)) == buttons.count((0x110, 0)) == 3  # double click and drag
    assert [value for kind, code, value in events if (kind, code) == (2, 8)] == [-1, -1]  # wheel


@pytest.fixture
def knocks() -> Iterator[tuple[int, list[str]]]:
    """A server on the host's loopback: its port, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("network", ["restricted", "open"])
def test_a_guest_reaches_the_host_only_when_its_network_is_open(
    tmp_path: Path, knocks: tuple[int, list[str]], network: str
) -> None:
    port, asked = knocks
    machine, _ = _boot(tmp_path, network=network, revert="overlay")
    knock = f"printf 'GET /knock HTTP/1.0\\r\\n\\r\\n' | nc -w 3 10.0.2.2 {port}"
    _as_root(machine, _NETWORK, f"{knock}; {_SAY_OVER}")
    _wait_until_over(machine)
    machine.stop()
    assert asked == (["/knock"] if network == "open" else [])


def test_a_guest_server_is_waited_for_and_still_answers_after_a_revert(tmp_path: Path) -> None:
    guest = json.loads(console_guest(build=True).read_text())
    image, script = tmp_path / "base.raw", tmp_path / "rc.local"
    subprocess.run(["qemu-img", "convert", "-O", "raw", guest["image"], str(image)], check=True)
    script.write_text(
        f"#!/bin/sh\n{_NETWORK}\nmkdir -p /srv\necho Linux > /srv/platform\nsleep 2\nhttpd -p 5000 -h /srv\n"
    )
    for request in (f"write {script} /etc/rc.local", "sif /etc/rc.local mode 0100755"):
        subprocess.run(["debugfs", "-w", "-R", request, str(image)], check=True, capture_output=True)
    machine, _ = _boot(tmp_path, image=str(image), ready="server", ports=[5000], boot_attempts=1)
    assert machine.has_snapshot
    for _ in range(3):
        assert server_answers(machine.endpoints().server, "/platform")
        machine.revert()
        assert machine.health() is None
    _as_root(machine, f"killall httpd; {_SAY_OVER}")
    _wait_until_over(machine)
    assert "does not answer" in (machine.health() or "")
    machine.revert()
    assert machine.health() is None
    machine.stop()


def test_files_are_read_back_whole_up_to_the_limit_and_none_is_not_empty(tmp_path: Path) -> None:
    machine, options = _boot(tmp_path)
    _as_root(machine, f"cd /tmp; : > empty; seq 100000 > 'a file'; head -c 2000000 /dev/zero > big; {_SAY_OVER}")
    _wait_until_over(machine)
    assert read_back(machine, options, "/tmp/none") is None
    assert read_back(machine, options, "/tmp/empty") == b""
    assert read_back(machine, options, "/tmp/a file") == "".join(f"{n}\n" for n in range(1, 100001)).encode()
    assert len(read_back(machine, options, "/tmp/big") or b"") == 1_000_000
    machine.stop()


@pytest.mark.parametrize("bus", ["ide", "scsi", "nvme"])
def test_linux_boots_from_every_bus(tmp_path: Path, bus: str) -> None:
    machine, _ = _boot(tmp_path, disk_bus=bus)
    assert machine.health() is None
    machine.stop()


def test_eight_machines_share_one_base(tmp_path: Path) -> None:
    machines = [_boot(tmp_path / str(number), revert="overlay")[0] for number in range(8)]
    assert [machine.health() for machine in machines] == [None] * 8
    assert len({machine.vnc_port() for machine in machines}) == 8
    for machine in machines:
        machine.stop()
