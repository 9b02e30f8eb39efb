"""Whether KVM can be used here. A device node alone proves nothing: containers and clouds have one too."""

import fcntl
import os
from pathlib import Path

from flywheel.errors import InfrastructureError

_KVM_GET_API_VERSION = 0xAE00
_API_VERSION = 12  # the only one there has been since 2007


def kvm_problem(device: Path = Path("/dev/kvm"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """None when KVM works, else one sentence. Looks at the processor's flags (vmx, svm) and opens the device."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        words = set()
    if not words & {"vmx", "svm"}:
        return (
            "The processor shows neither vmx nor svm: turn virtualisation on in the firmware, or nesting on the host."
        )
    try:
        handle = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"{device} cannot be opened ({error.strerror}); load kvm_intel or kvm_amd, or join the group kvm."
    try:
        version = fcntl.ioctl(handle, _KVM_GET_API_VERSION)
    except OSError as error:
        return f"{device} is not KVM ({error.strerror})."
    finally:
        os.close(handle)
    return (
        None if version == _API_VERSION else f"{device} speaks version {version} of the interface, not {_API_VERSION}."
    )


def accelerator(wanted: str) -> str:
    """`kvm` or `tcg` for `auto`; raises `InfrastructureError` when `kvm` is demanded and does not work."""
    if wanted == "tcg":
        return "tcg"
    problem = kvm_problem()
    if problem is None:
        return "kvm"
    if wanted == "kvm":
        raise InfrastructureError(f"KVM is asked for and does not work here. {problem}")
    return "tcg"
