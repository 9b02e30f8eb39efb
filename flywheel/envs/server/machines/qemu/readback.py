"""Reads a file out of a guest: through its agent, or by a script on the exchange stick that is started by typing.

Typing needs a place where a command can be typed whatever the episode left behind. In Linux that is a root shell on the
second virtual console, in Windows the Run dialog; both are the guest's own, so a guest that an agent broke cannot be
judged, and one that an agent forged can lie, as it can about every file of its.
"""

import secrets
import shlex
import time

from flywheel.actions.sendkey_verbs import read_verb
from flywheel.envs.server.machines.qemu.machine import QemuMachine
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.errors import ActionError, ConfigError, InfrastructureError
from flywheel.types import Action

LIMIT = 1_000_000  # bytes of one file
_ATTEMPTS = 3
_PATIENCE_S = 20.0  # for each

# What finds the stick, whenever the guest has seen it, and starts the script on it.
_TYPED = {
    "windows": (
        "wait 4",
        "sendkey meta_l-r",
        "wait 1.5",
        "typeline cmd /c for %d in (D E F G H I J) do if exist %d:\\FLYWHEEL.TAG %d:\\FETCH.BAT",
    ),
    "linux": (
        "sendkey ctrl-alt-f2",
        "wait 0.5",
        "sendkey ctrl-c",
        "typeline until mount $(findfs LABEL=FLYWHEEL) /mnt; do sleep 0.3; done; . /mnt/FETCH.SH; umount /mnt",
    ),
}


def read_back(machine: QemuMachine, options: QemuOptions, path: str) -> bytes | None:
    """At most `LIMIT` bytes of the file, None when there is none.

    Raises `InfrastructureError` when neither an agent nor the script answered.
    """
    if machine.agent is not None:
        return machine.agent.read(path, LIMIT)
    name, done = secrets.token_hex(4).upper(), secrets.token_hex(4).upper()  # so nobody can have written them before
    if options.platform == "windows":
        machine.exchange.insert({"FETCH.BAT": _batch(path, name, done).encode()})
    else:
        machine.exchange.insert({"FETCH.SH": _shell(path, name, done).encode()})
    actions = _actions(options)
    for _ in range(_ATTEMPTS):  # what was on the screen may have swallowed the first
        if _collected(machine, actions, done):
            break
    else:
        raise InfrastructureError(f"{path} did not come back from the guest: the typed command had no effect.")
    data = machine.exchange.read(name) if name in machine.exchange.names() else None
    machine.exchange.eject()
    return data


def _collected(machine: QemuMachine, actions: list[Action], done: str) -> bool:
    try:
        for action in actions:
            machine.console.perform(action)
    except ActionError as error:
        raise InfrastructureError(f"Nothing can be read back from the guest. {error}") from error
    deadline = time.monotonic() + _PATIENCE_S
    while done not in machine.exchange.names():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _actions(options: QemuOptions) -> list[Action]:
    verbs = options.collect or _TYPED["windows" if options.platform == "windows" else "linux"]
    try:
        return [read_verb(verb, options.size) for verb in verbs]
    except ActionError as error:
        raise ConfigError(f"collect of a QEMU machine: {error}") from error


def _shell(path: str, name: str, done: str) -> str:
    """Only of a plain file: reading a pipe would never end. Synchronised, as a stick in use cannot be unmounted.

    A command that was typed twice must not touch what the first has finished, because the host is reading it.
    """
    file = shlex.quote(path)
    copy = f"[ -f {file} ] && head -c {LIMIT} {file} > part && sync && mv part {name}"
    return f"cd /mnt\n[ -e {done} ] || {{\n{copy}\nsync\n: > {done}\nsync\n}}\ncd /\n"


def _batch(path: str, name: str, done: str) -> str:
    file = path.replace("%", "%%")
    lines = [
        "@echo off",
        "chcp 65001 >nul",
        f'if exist "%~dp0{done}" exit /b',
        "set PART=%RANDOM%",
        f'copy /y "{file}" "%~dp0%PART%" >nul && move /y "%~dp0%PART%" "%~dp0{name}" >nul',
        f'echo 1>"%~dp0{done}"',
    ]
    return "".join(f"{line}\r\n" for line in lines)
