"""What a machine is: something that can be started, reached, put back to a clean state and stopped.

A machine knows nothing of tasks. It is driven by one thread of one worker process; nothing here is asynchronous.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flywheel.errors import ConfigError, InfrastructureError


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a started machine listens, as seen from the worker; the ports OSWorld expects at 5000, 9222, 5900, 8080."""

    host: str
    server: int
    chromium: int
    vnc: int
    vlc: int


class Machine(Protocol):
    """One desktop. Every method but `health` and `stop` raises `InfrastructureError`."""

    def start(self) -> None:
        """Boot; returns when the guest server answers."""
        ...

    def endpoints(self) -> Endpoints:
        """Of the machine as it runs now; may change with `revert`."""
        ...

    def revert(self) -> None:
        """Back to the clean state it was first started in; what the episode did is gone."""
        ...

    def stop(self) -> None:
        """Leave nothing: no process, mount, file, socket or uid. Safe to call twice, and from any state."""
        ...

    def health(self) -> str | None:
        """None when it is well, else one sentence on what is wrong."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """A machine that people may look at."""

    def start_viewer(self) -> None:
        """Show the screen at `endpoints().vnc`, until `revert`, and take no input. Raises `InfrastructureError`."""
        ...


def view_of(machine: Machine) -> int | str:
    """Loopback port of a screen server that takes no input, or a sentence on why there is none."""
    if not isinstance(machine, Watchable):
        return "Desktops of this kind have no screen server that takes no input; choose the backend xvfb or qemu."
    try:
        machine.start_viewer()
        return machine.endpoints().vnc
    except InfrastructureError as error:
        return f"The desktop cannot be shown: {error}"


def refuse_unknown(what: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raises `ConfigError` when one of the options is not known to `what`."""
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(f"{what} has no option {unknown[0]!r}; it has {', '.join(known)}.")
