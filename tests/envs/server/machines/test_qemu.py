"""What needs no virtual machine: the US keyboard, options, the command line, the KVM probe, QMP's failures."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flywheel.actions.keys import QEMU_NAMES, chord
from flywheel.envs.server.machines.qemu.accelerator import accelerator, kvm_problem
from flywheel.envs.server.machines.qemu.agent import GuestAgent
from flywheel.envs.server.machines.qemu.command import command
from flywheel.envs.server.machines.qemu.console import Console
from flywheel.envs.server.machines.qemu.keymap import chord_codes, text_codes
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.envs.server.machines.qemu.qmp import Qmp, QmpError
from flywheel.errors import ActionError, ConfigError, InfrastructureError
from flywheel.types import Size, Type


def test_chords_press_modifiers_first_and_bring_shift_where_a_character_needs_it() -> None:
    assert chord_codes(("ctrl", "alt", "delete")) == ["ctrl", "alt", "delete"]
    assert chord_codes(("super", "r")) == ["meta_l", "r"]
    assert chord_codes(("a", "ctrl")) == ["ctrl", "a"]
    assert chord_codes(("+",)) == ["shift", "equal"]
    assert chord_codes(("<",)) == ["shift", "comma"]
    assert chord_codes(("A",)) == ["shift", "a"]
    assert chord_codes(("shift", "!")) == ["shift", "1"]


@pytest.mark.parametrize("name", sorted(QEMU_NAMES))
def test_every_key_that_the_sendkey_space_writes_is_on_the_keyboard(name: str) -> None:
    assert chord_codes(chord([QEMU_NAMES[name]]))


def test_text_is_one_chord_for_each_character() -> None:
    assert text_codes("aA\r\n") == [["a"], ["shift", "a"], ["ret"]]
    for text in ("é", "\x07", "“"):
        with pytest.raises(ActionError, match="US keyboard"):
            text_codes(text)


_IMAGE = {"image": "base.qcow2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs an image"),
        (_IMAGE | {"memory": 1}, "no option memory"),
        (_IMAGE | {"memory_mb": "2G"}, "memory_mb .* is int"),
        (_IMAGE | {"cpus": 0}, "at least 1"),
        (_IMAGE | {"cpus": True}, "cpus .* is int"),
        (_IMAGE | {"network": "bridged"}, "one of restricted, open, none"),
        (_IMAGE | {"ports": [80, "x"]}, "ports .* is int"),
        (_IMAGE | {"ports": 80}, "is a list"),
        (_IMAGE | {"screen": [800]}, "has 2 entries"),
        (_IMAGE | {"ready": "server", "ports": []}, "needs a network"),
        (_IMAGE | {"firmware": "OVMF_CODE.fd"}, "UEFI needs both"),
        ({"guest": "/nowhere/guest.json"}, "build the guest first"),
    ],
)
def test_options_that_cannot_be_used_are_refused_with_a_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QemuOptions.from_json(options)


def test_options_go_over_those_of_the_guest(tmp_path: Path) -> None:
    guest = tmp_path / "guest.json"
    guest.write_text(json.dumps({"image": "base.qcow2", "memory_mb": 160, "ready": "screen"}))
    options = QemuOptions.from_json({"guest": str(guest), "memory_mb": 512, "settle_s": 2})
    assert (options.image, options.memory_mb, options.ready, options.settle_s) == ("base.qcow2", 512, "screen", 2.0)


def test_windows_under_uefi_is_a_matter_of_options(tmp_path: Path) -> None:
    options = QemuOptions.from_json(
        {
            "image": "windows.qcow2",
            "platform": "windows",
            "firmware": "/usr/share/OVMF/OVMF_CODE_4M.fd",
            "firmware_vars": "/usr/share/OVMF/OVMF_VARS_4M.fd",
            "disk_bus": "ide",
            "network_card": "e1000e",
            "clock": "localtime",
            "ready": "screen",
            "ports": [],
            "memory_mb": 8192,
        }
    )
    line = " ".join(command(options, "kvm", tmp_path, 3, None))
    for part in (
        "pflash0=code,pflash1=vars",
        "ide-hd,drive=disk",
        "e1000e",
        "base=localtime",
        "-m 8192",
        "-cpu host",
        "restrict=on",
    ):
        assert part in line
    assert '"read-only": true' in line  # the firmware's code


def test_the_network_is_closed_unless_it_is_opened(tmp_path: Path) -> None:
    def line(network: str) -> str:
        options = QemuOptions.from_json(_IMAGE | {"network": network, "ready": "screen", "ports": [80]})
        return " ".join(command(options, "tcg", tmp_path, 3, None))

    assert "restrict=on" in line("restricted")
    assert "restrict=off" in line("open")
    assert "netdev" not in line("none")
    assert "hostfwd=tcp:127.0.0.1:0-:80" in line("open")


def test_kvm_needs_the_processors_flag_and_a_device_that_is_kvm(tmp_path: Path) -> None:
    without, having = tmp_path / "without", tmp_path / "having"
    without.write_text("flags : fpu hypervisor lm\n")
    having.write_text("flags : fpu vmx lm\n")
    assert "neither vmx nor svm" in (kvm_problem(Path("/dev/null"), without) or "")
    assert "cannot be opened" in (kvm_problem(tmp_path / "kvm", having) or "")
    assert "is not KVM" in (kvm_problem(Path("/dev/null"), having) or "")  # opens, and is something else
    assert accelerator("tcg") == "tcg"
    assert accelerator("auto") == ("tcg" if kvm_problem() else "kvm")


def _peer(answer: Callable[[socket.socket], None]) -> socket.socket:
    ours, theirs = socket.socketpair()
    threading.Thread(target=lambda: (answer(theirs), theirs.close()), daemon=True).start()
    return ours


def _monitor(*replies: bytes) -> socket.socket:
    """Greets, accepts the capabilities, then gives one reply to every line."""

    def answer(peer: socket.socket) -> None:
        peer.sendall(b'{"QMP": {}}\n')
        lines = peer.makefile("rb")
        for reply in (b'{"return": {}, "id": 1}\n', *replies):
            lines.readline()
            peer.sendall(reply)
        lines.readline() if replies[-1:] == (b"",) else None

    return _peer(answer)


def test_events_and_late_answers_are_passed_over() -> None:
    qmp = Qmp(_monitor(b'{"event": "RESUME"}\n{"return": "old", "id": 1}\n{"return": "new", "id": 2}\n'))
    assert qmp.execute("query-status") == "new"
    qmp.close()


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (b'{"error": {"class": "GenericError", "desc": "No such device"}, "id": 2}\n', QmpError, "No such device"),
        (b'{"return": ', InfrastructureError, "closed the connection"),
        (b"hello\n", InfrastructureError, "not JSON"),
    ],
)
def test_what_the_monitor_may_answer_becomes_a_sentence(reply: bytes, kind: type[Exception], message: str) -> None:
    qmp = Qmp(_monitor(reply))
    with pytest.raises(kind, match=message):
        qmp.execute("device_del")
    qmp.close()


def test_a_monitor_that_says_nothing_is_given_up() -> None:
    qmp = Qmp(_monitor(b""))
    with pytest.raises(InfrastructureError, match="did not answer in time"):
        qmp.execute("query-status", timeout=0.2)
    qmp.close()


class _Keyboard:
    """A monitor whose guest takes each key only when it was asked for `looks` times."""

    def __init__(self, looks: int) -> None:
        self.looks, self.waiting = looks, 0
        self.pressed, self.overrun = list[str](), False

    def execute(self, _command: str, arguments: dict[str, Any]) -> None:
        self.overrun |= self.waiting > 0
        self.waiting = self.looks
        self.pressed += [e["data"]["key"]["data"] for e in arguments["events"] if e["data"]["down"]]

    def human(self, line: str) -> str:
        assert line == "i /1xb 0x64"
        self.waiting -= 1
        return f"portb[0x0064] = 0x1{'d' if self.waiting > 0 else 'c'}\n"


def _console(keyboard: _Keyboard, monkeypatch: pytest.MonkeyPatch) -> Console:
    console = Console(cast(Qmp, keyboard), Path(), 0.0, pointer=False)
    monkeypatch.setattr(console, "_size", Size(640, 480))
    return console


def test_each_key_waits_until_the_guest_has_taken_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard = _Keyboard(looks=5)
    _console(keyboard, monkeypatch).perform(Type("aB"))
    assert keyboard.pressed == ["a", "shift", "b"]
    assert not keyboard.overrun


def test_a_guest_that_takes_no_keys_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flywheel.envs.server.machines.qemu.console._TAKEN_S", 0.05)
    keyboard = _Keyboard(looks=10**9)
    with pytest.raises(ActionError, match="taken no key"):
        _console(keyboard, monkeypatch).perform(Type("ab"))
    assert keyboard.pressed == ["a"]


@pytest.mark.skipif(shutil.which("qemu-ga") is None, reason="needs the Debian package qemu-guest-agent")
def test_files_are_read_through_a_real_guest_agent(tmp_path: Path) -> None:
    """The agent runs on this machine, where a guest would have it behind its port."""
    path = tmp_path / "socket"
    command = ["qemu-ga", "-m", "unix-listen", "-p", str(path), "-t", str(tmp_path)]
    agent_process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    agent = GuestAgent(connection)
    (tmp_path / "large").write_bytes(bytes(range(256)) * 10_000)
    (tmp_path / "empty").touch()
    assert agent.read(str(tmp_path / "large"), 10_000_000) == bytes(range(256)) * 10_000
    assert agent.read(str(tmp_path / "large"), 1000) == (bytes(range(256)) * 4)[:1000]
    assert agent.read(str(tmp_path / "empty"), 10) == b""
    assert agent.read(str(tmp_path / "none"), 10) is None
    assert agent.read(str(tmp_path), 10) is None
    agent.close()
    agent_process.kill()
    agent_process.wait()


def test_nobody_behind_the_agents_port_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    agent = GuestAgent(ours)
    with pytest.raises(InfrastructureError, match="guest agent did not answer"):
        agent.execute("guest-ping", timeout=0.2)
    agent.close()
    theirs.close()
