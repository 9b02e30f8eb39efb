"""Which machine an OSWorld episode runs on, from its name and the options of the worker's command line."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flywheel.envs.server.machines.base import Machine, refuse_unknown
from flywheel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Traits:
    """What capabilities say of a machine; `apps` is None when the guest is asked for its programs."""

    platform: str = "ubuntu"
    apps: frozenset[str] | None = None
    internet: bool = False
    snapshots: bool = True
    isolation: str = "vm"


def make_machine(kind: str, folder: Path, options: Mapping[str, Any]) -> tuple[Machine, Traits]:
    """Raises `ConfigError` for an unknown kind or option. Machines are imported when they are asked for."""
    if kind == "xvfb":
        from flywheel.envs.server.machines.xvfb.machine import XvfbMachine
        from flywheel.envs.server.machines.xvfb.options import XvfbOptions

        known = {field.name for field in fields(XvfbOptions)} - {"run_root", "guest", "guest_python"}
        refuse_unknown("The machine 'xvfb'", options, sorted(known))
        made = {name: _frozen(value) for name, value in options.items()}
        machine = XvfbMachine(XvfbOptions(run_root=folder, **made))
        return machine, Traits(isolation="bubblewrap", apps=machine.apps)
    if kind == "qemu":
        from flywheel.envs.server.machines.qemu.machine import QemuMachine
        from flywheel.envs.server.machines.qemu.options import QemuOptions

        chosen = QemuOptions.from_json(options)
        platform = "windows" if chosen.platform == "windows" else "ubuntu"
        apps = frozenset(chosen.apps) or None
        return QemuMachine(chosen, folder), Traits(platform, apps, internet=chosen.network == "open")
    if kind == "remote":
        from flywheel.envs.server.machines.remote import PORTS, RemoteMachine

        refuse_unknown("The machine 'remote'", options, sorted({"host", "internet", *PORTS}))
        internet = bool(options.get("internet", False))
        return RemoteMachine(options), Traits(internet=internet, snapshots=False, isolation="unknown")
    if kind == "gateway":
        from flywheel.envs.server.machines.gateway import GatewayMachine

        return GatewayMachine(options), Traits()
    if kind == "stock":
        from flywheel.envs.server.machines.stock import StockMachine

        platform = "windows" if str(options.get("os_type", "")).lower() == "windows" else "ubuntu"
        return StockMachine(options), Traits(platform, internet=True)
    raise ConfigError(f"There is no machine '{kind}' for OSWorld's tasks; choose xvfb, qemu, remote, gateway or stock.")


def _frozen(value: Any) -> Any:
    """JSON has lists where options have tuples, or sets of names."""
    if isinstance(value, list):
        return frozenset(value) if all(isinstance(each, str) for each in value) else tuple(value)
    return value
