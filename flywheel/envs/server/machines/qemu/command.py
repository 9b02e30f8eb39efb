"""The command line of one virtual machine."""

import json
from pathlib import Path

from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.errors import ConfigError

SOCKET_PATH_LIMIT = 107  # bytes of a unix socket's path (unix(7)), without the final zero
DISK, VARS = "disk", "vars"  # names of the writable block nodes


def command(options: QemuOptions, accelerator: str, folder: Path, monitor: int, agent: int | None) -> list[str]:
    """What to execute. `monitor` and `agent` are connected sockets, inherited by number; disks are those in `folder`.

    The parent's death kills QEMU (`setpriv`). Its system call filter forbids it to start programs and to gain rights.
    """
    cpu = options.cpu or ("host" if accelerator == "kvm" else "max")
    firmware = ",pflash0=code,pflash1=vars" if options.firmware else ""
    parts = ["setpriv", "--pdeathsig", "KILL", "--", "qemu-system-x86_64", "-nodefaults", "-no-user-config"]
    parts += ["-no-shutdown"]  # a guest that is switched off keeps its last picture, and is seen to be off
    parts += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    parts += ["-machine", f"{options.machine}{firmware}", "-accel", accelerator, "-cpu", cpu]
    parts += ["-smp", str(options.cpus), "-m", str(options.memory_mb), "-rtc", f"base={options.clock}"]
    parts += ["-display", "none", *_display(options), *_vnc(options, folder)]
    parts += ["-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"]
    # kept in memory, the last 64 KiB: a guest cannot fill the host's disk through its serial port
    parts += ["-chardev", "ringbuf,id=serial,size=65536", "-serial", "chardev:serial"]
    parts += [*_disks(options, folder), *_devices(options, agent), *_network(options)]
    for name in ("kernel", "initrd", "append"):
        if value := getattr(options, name):
            parts += [f"-{name}", value]
    return [*parts, *options.extra]


def _display(options: QemuOptions) -> list[str]:
    width, height = options.screen
    size = f",xres={width},yres={height}" if options.display in ("VGA", "virtio-vga", "bochs-display") else ""
    return ["-device", options.display + size]


def _vnc(options: QemuOptions, folder: Path) -> list[str]:
    if options.vnc == "none":
        return []
    if options.vnc == "loopback":
        return ["-vnc", "127.0.0.1:0,to=9999,password=on"]
    path = str(folder / "vnc")
    if len(path.encode()) > SOCKET_PATH_LIMIT:
        raise ConfigError(f"{path} is too long for a socket; set FLYWHEEL_DESKTOPS to a shorter path.")
    return ["-vnc", f"unix:{path.replace(',', ',,')}"]


def _disks(options: QemuOptions, folder: Path) -> list[str]:
    """The overlay lives for one boot: a host crash may lose it, so flushes of the guest are not passed on."""
    parts = ["-blockdev", _node(DISK, "qcow2", folder / "disk.qcow2")]
    match options.disk_bus:
        case "virtio":
            parts += ["-device", f"virtio-blk-pci,drive={DISK},bootindex=1"]
        case "ide":
            parts += ["-device", f"ide-hd,drive={DISK},bootindex=1"]
        case "scsi":
            parts += ["-device", "virtio-scsi-pci,id=scsi", "-device", f"scsi-hd,bus=scsi.0,drive={DISK},bootindex=1"]
        case "nvme":
            parts += ["-device", f"nvme,serial=flywheel,drive={DISK},bootindex=1"]
    if options.firmware:
        parts += ["-blockdev", _node("code", "raw", Path(options.firmware), read_only=True)]
        parts += ["-blockdev", _node(VARS, "qcow2", folder / "vars.qcow2")]
    return parts


def _node(name: str, driver: str, path: Path, read_only: bool = False) -> str:
    file = {"driver": "file", "filename": str(path), "discard": "unmap"}
    return json.dumps(
        {
            "node-name": name,
            "driver": driver,
            "file": file,
            "read-only": read_only,
            "discard": "unmap",
            "cache": {"no-flush": True},
        }
    )


def _devices(options: QemuOptions, agent: int | None) -> list[str]:
    parts = ["-device", "qemu-xhci,id=usb"]
    if options.pointer:
        parts += ["-device", "usb-tablet,bus=usb.0"]
    if agent is not None:
        parts += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={agent}"]
        parts += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
    return parts


def _network(options: QemuOptions) -> list[str]:
    if options.network == "none":
        return []
    forwards = "".join(f",hostfwd=tcp:127.0.0.1:0-:{port}" for port in options.ports)
    restrict = "on" if options.network == "restricted" else "off"
    return [
        "-netdev",
        f"user,id=net,ipv6=off,restrict={restrict}{forwards}",
        "-device",
        f"{options.network_card},netdev=net,romfile=",
    ]
