"""The kinds of desktops that the env server can offer, and what each needs."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flywheel.envs.server.places import server_python
from flywheel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that each command of a worker may take; one that takes longer is killed."""

    start: float = 300.0
    reset: float = 600.0
    step: float = 120.0
    observe: float = 60.0
    evaluate: float = 600.0
    view: float = 30.0
    recycle: float = 180.0
    health: float = 20.0
    close: float = 30.0


@dataclass(frozen=True, slots=True)
class Backend:
    """`episode` and `machine` go to the worker. `reap` names `module:function`, called with the session folder of a
    desktop whose worker was killed, to end what a machine may have left outside it."""

    episode: str
    machine: str = ""
    reap: str | None = None
    deadlines: Deadlines = Deadlines()

    def python(self) -> Path:
        """The Python of its workers. Raises `ConfigError` when the desktops' own environment was not made yet."""
        if self.episode != "osworld":
            return Path(sys.executable)
        if not server_python().exists():
            raise ConfigError(
                f"Desktops of kind '{self.machine}' need {server_python()}, which is not there; "
                "run `flywheel desktops setup`."
            )
        return server_python()

    def reaper(self) -> Callable[[Path], None]:
        """What `reap` names; does nothing where there is nothing to reap."""
        if self.reap is None:
            return lambda folder: None
        module, _, name = self.reap.partition(":")
        function: Callable[[Path], None] = getattr(importlib.import_module(module), name)
        return function


BACKENDS: dict[str, Backend] = {
    "simulated": Backend("simulated"),
    "xvfb": Backend("osworld", "xvfb", "flywheel.envs.server.machines.xvfb.reap:reap"),
    # Three boots of five minutes each, as an emulated machine or Windows may take.
    "qemu": Backend(
        "osworld", "qemu", "flywheel.envs.server.machines.qemu.reap:reap", Deadlines(start=1000.0, recycle=1000.0)
    ),
    "remote": Backend("osworld", "remote"),
    "gateway": Backend("osworld", "gateway"),
    "stock": Backend("osworld", "stock"),
}
