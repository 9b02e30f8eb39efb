"""Reads a file out of a guest: through its agent, or by typing the command that copies it to the exchange stick.

Typing needs a place where a command can be typed whatever the episode left behind. In Linux that is a root shell on the
second virtual console, in Windows the Run dialog; both are the guest's own, so a guest whose agent broke them cannot be
judged, and one that faked them can lie, as it can about every file of its.
"""

import secrets
import shlex
import time

from flywheel.actions.sendkey_verbs import read_verb
from flywheel.envs.server.machines.qemu.machine import QemuMachine
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.errors import ActionError, InfrastructureError

LIMIT = 1_000_000  # bytes of one file
_TIMEOUT_S = 30.0

_LINUX = (
    "sendkey ctrl-alt-f2",
    "wait 0.5",
    "typeline until d=$(findfs LABEL=FLYWHEEL 2>/dev/null); do sleep 0.3; done; mount $d /mnt; "
    "[ -f {path} ] && head -c 1000000 {path} > /mnt/{name}; touch /mnt/{done}; umount /mnt",
)
_WINDOWS = (
    "wait 4",
    "sendkey meta_l-r",
    "wait 1.5",
    "typeline cmd /c for %d in (D E F G H I J) do @if exist %d:\\FLYWHEEL.TAG "
    "(copy /y {path} %d:\\{name} & echo 1>%d:\\{done})",
)


def read_back(machine: QemuMachine, options: QemuOptions, path: str) -> bytes | None:
    """At most `LIMIT` bytes of the file, None when there is none.

    Raises `InfrastructureError` when neither an agent nor the typed command answered.
    """
    if machine.agent is not None:
        return machine.agent.read(path, LIMIT)
    name, done = secrets.token_hex(4).upper(), secrets.token_hex(4).upper()  # nobody in the guest can write them ahead
    machine.exchange.insert({})
    for verb in options.collect or (_WINDOWS if options.platform == "windows" else _LINUX):
        quoted = f'"{path}"' if options.platform == "windows" else shlex.quote(path)
        line = verb.replace("{path}", quoted).replace("{name}", name).replace("{done}", done)
        try:
            machine.console.perform(read_verb(line, options.size))
        except ActionError as error:
            raise InfrastructureError(f"The command that collects {path} cannot be typed. {error}") from error
    deadline = time.monotonic() + _TIMEOUT_S
    while done not in machine.exchange.names():
        if time.monotonic() > deadline:
            raise InfrastructureError(f"The guest did not copy {path} to the exchange stick in {_TIMEOUT_S:.0f} s.")
        time.sleep(0.1)
    data = machine.exchange.read(name) if name in machine.exchange.names() else None
    machine.exchange.eject()
    return data
