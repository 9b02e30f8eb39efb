"""What a virtual machine is made of, as given by `--options` JSON or by the `guest.json` of an image."""

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flywheel.errors import ConfigError
from flywheel.types import Size


@dataclass(frozen=True, slots=True)
class QemuOptions:
    """Defaults suit a Linux desktop with a guest server; `extra` are further arguments for QEMU, as they are.

    Attributes:
        image: the base disk, never written to. Windows and anything else that boots will do.
        format: of the image; asked of `qemu-img info` when empty.
        machine: `q35`, or `pc` for systems from before 2010.
        cpu: empty means the host's under KVM, everything QEMU can emulate otherwise.
        accelerator: `auto` takes KVM where it works (see `accelerator.py`) and software emulation elsewhere.
        firmware: a UEFI code image such as /usr/share/OVMF/OVMF_CODE_4M.fd, together with `firmware_vars`; empty: BIOS.
        disk_bus: virtio needs a driver in the guest, which stock Windows lacks: take `ide` (AHCI on q35) there.
        kernel, initrd, append: boot these instead of what is on the disk.
        display: the graphics card; `screen` is the size it proposes to the guest, which may set another.
        pointer: a USB tablet, which takes absolute positions.
        clock: `localtime` for Windows. After a revert to a snapshot the guest's clock goes on from the snapshot's time.
        network: `restricted` reaches nothing but answers on `ports`; `open` has the host's internet, and the host.
        network_card: `e1000e` needs no extra driver in Windows.
        ports: guest ports that are reachable from the host's loopback, on ports that QEMU picks.
        ready: when it has booted. `server`: GET `ready_path` on the first of `ports` answers 200; `serial`:
            `ready_text` comes over the first serial port; `screen`: the picture is not black and rests for `settle_s`.
        prepare: verbs of the `sendkey` space (log in, close a welcome page), done once, after boot.
        revert: `snapshot` saves the memory after boot and goes back to it, in under a second, or falls back to
            `overlay` where a device cannot be saved; `overlay` boots again on a fresh disk.
        vnc: `loopback` has a password of its own for each machine, `unix` is a socket in the session folder.
        agent: a port for qemu-guest-agent, which reads files of any size without typing.
        platform, apps: what capabilities say; apps under OSWorld's names.
        collect: verbs that start the script on the exchange stick, where those of `readback.py` do not fit the guest.
        key_interval_s: between typed characters.
    """

    image: str
    format: str = ""
    machine: str = "q35"
    cpu: str = ""
    cpus: int = 2
    memory_mb: int = 2048
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    firmware: str = ""
    firmware_vars: str = ""
    disk_bus: Literal["virtio", "ide", "scsi", "nvme"] = "virtio"
    kernel: str = ""
    initrd: str = ""
    append: str = ""
    display: str = "VGA"
    screen: tuple[int, int] = (1280, 800)
    pointer: bool = True
    clock: Literal["utc", "localtime"] = "utc"
    network: Literal["restricted", "open", "none"] = "restricted"
    network_card: str = "virtio-net-pci"
    ports: tuple[int, ...] = (5000, 9222, 8080)
    ready: Literal["server", "serial", "screen"] = "server"
    ready_path: str = "/platform"
    ready_text: str = "login:"
    settle_s: float = 5.0
    prepare: tuple[str, ...] = ()
    boot_timeout_s: float = 300.0
    boot_attempts: int = 3
    revert: Literal["snapshot", "overlay"] = "snapshot"
    vnc: Literal["loopback", "unix", "none"] = "loopback"
    agent: bool = False
    platform: str = "linux"
    apps: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    key_interval_s: float = 0.02
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ready == "server" and not (self.ports and self.network != "none"):
            raise ConfigError(
                "ready=server needs a network and a first entry in ports; or set ready to serial or screen."
            )
        if bool(self.firmware) != bool(self.firmware_vars):
            raise ConfigError(
                "UEFI needs both firmware and firmware_vars, for example OVMF_CODE_4M.fd and OVMF_VARS_4M.fd."
            )
        if min(self.cpus, self.memory_mb, self.boot_attempts) < 1:
            raise ConfigError("cpus, memory_mb and boot_attempts of a virtual machine are at least 1.")

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> "QemuOptions":
        """`guest` names a JSON file whose values hold where `options` says nothing. Raises `ConfigError`."""
        values = dict(options)
        if guest := values.pop("guest", None):
            values = {**_read(Path(guest).expanduser()), **values}
        kinds = typing.get_type_hints(cls)
        if unknown := sorted(set(values) - set(kinds)):
            raise ConfigError(f"A QEMU machine has no option {unknown[0]}; it has {', '.join(kinds)}.")
        if "image" not in values:
            raise ConfigError("A QEMU machine needs an image; give image, or guest with the path of a guest.json.")
        return cls(**{name: _checked(name, value, kinds[name]) for name, value in values.items()})

    @property
    def size(self) -> Size:
        return Size(*self.screen)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The guest description {path} cannot be read ({error}); build the guest first.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"The guest description {path} is not a JSON object of options.")
    return values


def _checked(name: str, value: Any, kind: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{name} of a QEMU machine is one of {', '.join(arguments)}, not {value!r}.")
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is not ... and len(value) != len(arguments):
            raise ConfigError(f"{name} of a QEMU machine has {len(arguments)} entries, not {len(value)}.")
        return tuple(_checked(name, entry, arguments[0]) for entry in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        expected = "a list" if origin is tuple else kind.__name__
        raise ConfigError(f"{name} of a QEMU machine is {expected}, not {value!r}.")
    return value
