"""Copy-on-write disks: what a guest writes lands in an overlay, the base is only read."""

import json
import shutil
from pathlib import Path

from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.envs.server.machines.qemu.tools import run
from flywheel.errors import InfrastructureError


def make_disks(options: QemuOptions, folder: Path) -> None:
    """`disk.qcow2`, an empty overlay on the image (15 to 40 ms), and `vars.qcow2`, the memory of a UEFI firmware.

    Raises `InfrastructureError` when the image is missing or is not what its `format` says.
    """
    image = Path(options.image).expanduser().absolute()
    if not image.is_file():
        raise InfrastructureError(f"There is no disk image {image}; set image to one that exists.")
    kind = options.format or image_format(image)
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(image), "-F", kind, str(folder / "disk.qcow2")], 60)
    if options.firmware_vars:
        # as qcow2, because a snapshot of the machine must include it
        run(["qemu-img", "convert", "-O", "qcow2", options.firmware_vars, str(folder / "vars.qcow2")], 60)


def image_format(image: Path) -> str:
    """As qemu-img sees it. For the operator's images: a guest can write a raw disk so that it looks like another."""
    return str(json.loads(run(["qemu-img", "info", "-U", "--output=json", str(image)], 60))["format"])


def check_space(folder: Path, memory_mb: int) -> None:
    """Raises `InfrastructureError` when not even a snapshot of the memory would fit."""
    free = shutil.disk_usage(folder).free
    if free < memory_mb * 1024 * 1024:
        raise InfrastructureError(
            f"{folder} has {free >> 20} MB left, a snapshot may need {memory_mb}; make room or move FLYWHEEL_DESKTOPS."
        )
