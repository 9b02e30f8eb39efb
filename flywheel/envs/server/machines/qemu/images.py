"""Builds a small bootable Linux guest from Debian packages: no docker engine, no loop mount, no root.

The console guest is Debian's kernel and busybox on an ext4 disk: a shell of the user `user` on the first virtual
console, a root shell on the second (`ctrl-alt-f2`). It boots in seconds even under software emulation. What is needed
here is apt-get (packages are only downloaded), dpkg-deb, mke2fs and qemu-img.

    python -m flywheel.envs.server.machines.qemu.images     makes it under the desktops' cache and prints its guest.json
"""

import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from flywheel.envs.server.machines.qemu.tools import run
from flywheel.envs.server.places import cache_root
from flywheel.errors import InfrastructureError

GUEST_FILE = "guest.json"
READY_LINE = "flywheel-guest-ready"

# Enough for every disk bus, the exchange stick, the tablet and the network cards of `command.py`.
MODULES = """
    virtio_pci virtio_blk virtio_scsi virtio_net virtio_console e1000 e1000e ahci ata_piix sd_mod nvme
    crc32c_generic ext4 vfat nls_cp437 nls_ascii nls_utf8 xhci_pci usb_storage usbhid hid_generic evdev af_packet
"""
_FOLDERS = ("bin", "sbin", "etc", "dev", "proc", "sys", "tmp", "root", "home/user", "mnt", "usr/bin", "usr/sbin", "var")

_INITRD_INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
while read -r module; do /bin/busybox insmod /modules/$module; done < /modules/order
for attempt in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  disk=$(/bin/busybox findfs LABEL=flyroot) && break
  /bin/busybox sleep 0.2
done
/bin/busybox mount -t ext4 "$disk" /root
/bin/busybox umount /proc
exec /bin/busybox switch_root /root /sbin/init
"""

_INITTAB = """::sysinit:/etc/rc
tty1::respawn:/bin/login -f user
tty2::respawn:/bin/login -f root
::ctrlaltdel:/sbin/reboot
::shutdown:/bin/umount -a -r
"""

_RC = f"""#!/bin/sh
mount -t devtmpfs dev /dev 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts && mount -t devpts pts /dev/pts
mount -o remount,rw /
mount -t tmpfs -o size=16m tmp /tmp && chmod 1777 /tmp
hostname guest
ip link set lo up
chown -R user:user /home/user
stty -F /dev/ttyS0 raw 2>/dev/null
[ -x /etc/rc.local ] && /etc/rc.local &
(sleep 0.5; echo {READY_LINE} > /dev/ttyS0) &
"""

_ETC = {
    "inittab": _INITTAB,
    "rc": _RC,
    "passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
    "group": "root:x:0:\nuser:x:1000:\n",
}


def build_console_guest(folder: Path) -> Path:
    """Makes the guest in `folder` unless it is there; returns its `guest.json`, options for `QemuOptions.from_json`.

    Downloads 70 MB; 10 s on two cores. Raises `InfrastructureError` when a tool is missing or a download fails.
    """
    made = folder / GUEST_FILE
    if made.exists():
        return made
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch_name:
        scratch = Path(scratch_name)
        packages = _download(scratch / "debs", _kernel_package(), "busybox-static")
        for package in packages:
            run(["dpkg-deb", "-x", str(package), str(scratch / "unpacked")], 120)
        ready = scratch / "ready"
        ready.mkdir()
        _assemble(scratch, ready, folder)
        folder.mkdir(exist_ok=True)
        for name in (
            "vmlinuz",
            "initrd.img",
            "base.qcow2",
            GUEST_FILE,
        ):  # the last says that all are there
            os.replace(ready / name, folder / name)
    return made


def _kernel_package() -> str:
    """The versioned package behind `linux-image-amd64`."""
    answer = run(["apt-cache", "depends", "linux-image-amd64"], 60).decode()
    found = re.search(r"Depends: (linux-image-\S+)", answer)
    if found is None:
        raise InfrastructureError("apt knows no linux-image-amd64; run apt-get update on a Debian machine of x86-64.")
    return found.group(1)


def _download(folder: Path, *packages: str) -> list[Path]:
    folder.mkdir()
    folder.chmod(0o777)  # apt-get downloads as the user _apt when it is root
    run(["apt-get", "download", *packages], 600, cwd=folder)
    return sorted(folder.glob("*.deb"))


def _assemble(scratch: Path, ready: Path, folder: Path) -> None:
    unpacked = scratch / "unpacked"
    busybox = unpacked / "bin" / "busybox"
    kernel = next((unpacked / "boot").glob("vmlinuz-*"))
    shutil.copy2(kernel, ready / "vmlinuz")
    _initrd(unpacked, busybox, scratch / "initrd", ready / "initrd.img")
    _disk(busybox, scratch / "root", ready / "base.qcow2")
    options = {
        "image": str(folder / "base.qcow2"),
        "kernel": str(folder / "vmlinuz"),
        "initrd": str(folder / "initrd.img"),
        "append": "console=tty0 quiet vga=0x314 usb_storage.delay_use=0 consoleblank=0 mitigations=off",
        "memory_mb": 160,
        "cpus": 1,
        "platform": "linux",
        "apps": ["terminal"],
        "ready": "serial",
        "ready_text": READY_LINE,
        "ports": [],
    }
    (ready / GUEST_FILE).write_text(json.dumps(options, indent=2) + "\n")


def _initrd(unpacked: Path, busybox: Path, tree: Path, out: Path) -> None:
    for name in ("bin", "dev", "proc", "root", "modules"):
        (tree / name).mkdir(parents=True)
    shutil.copy2(busybox, tree / "bin" / "busybox")
    order = _modules(unpacked, tree / "modules")
    (tree / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
    (tree / "init").write_text(_INITRD_INIT)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    archive = subprocess.run(
        [str(busybox), "cpio", "-o", "-H", "newc"], cwd=tree, input=names.encode(), capture_output=True, check=True
    )
    out.write_bytes(gzip.compress(archive.stdout, 6))


def _modules(unpacked: Path, out: Path) -> list[str]:
    """Copies `MODULES` and all they depend on, unpacked; returns file names in an order in which they can be loaded."""
    found = {path.name.split(".")[0].replace("-", "_"): path for path in unpacked.rglob("*.ko*")}
    order: list[str] = []

    def add(name: str) -> None:
        path = found.get(name)
        if path is None or f"{name}.ko" in order:
            return  # built into this kernel, or there already
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        listed = re.search(rb"\0depends=([^\0]*)\0", data)
        soft = re.findall(rb"\0softdep=pre: ([^\0]*)\0", data)
        needed = (listed.group(1).decode().split(",") if listed else []) + [n for s in soft for n in s.decode().split()]
        for dependency in needed:
            add(dependency.replace("-", "_"))
        (out / f"{name}.ko").write_bytes(data)
        order.append(f"{name}.ko")

    for name in MODULES.split():
        add(name)
    return order


def _disk(busybox: Path, tree: Path, out: Path) -> None:
    for name in _FOLDERS:
        (tree / name).mkdir(parents=True)
    shutil.copy2(busybox, tree / "bin" / "busybox")
    for applet in run([str(busybox), "--list-full"], 10).decode().split():
        link = tree / applet
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to("/bin/busybox")
    for name, text in _ETC.items():
        (tree / "etc" / name).write_text(text)
    (tree / "etc" / "rc").chmod(0o755)
    raw = out.with_suffix(".raw")
    run(["mke2fs", "-q", "-t", "ext4", "-L", "flyroot", "-d", str(tree), str(raw), "64M"], 60)
    run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(out)], 60)
    raw.unlink()


if __name__ == "__main__":
    print(build_console_guest(cache_root() / "qemu" / "console"))
