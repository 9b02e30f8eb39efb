"""System calls that the sandbox refuses, as a seccomp filter that bubblewrap loads before the first program inside.

They fail with EPERM, as they do for a user without rights, so programs that only try go on. Refused is what a desktop
has no use for and what holes in kernels were found in: keyrings, eBPF, io_uring, userfaultfd, performance counters,
mounting, other namespaces, modules, the clock. What `unshare` and `clone` make is not refused: Chromium's own sandbox
is built of user namespaces. Neither is `ptrace`, which reaches no process outside the pid namespace.

A program is an array of `struct sock_filter` (linux/filter.h); it sees `struct seccomp_data` (linux/seccomp.h).
"""

import platform
import struct
from dataclasses import dataclass
from pathlib import Path

DENIED = {
    # name: number on x86_64, on aarch64; None where there is no such call
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
"""Offsets in `struct seccomp_data`."""
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1
"""The second is SECCOMP_RET_ERRNO with EPERM."""
_X32 = 0x40000000
"""From here on calls of x86_64's other ABI, with numbers of its own; no Debian uses it."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A kind of processor: its AUDIT_ARCH of linux/audit.h, and its column in `DENIED`."""

    audit: int
    column: int


PROCESSORS = {"x86_64": Processor(0xC000003E, 0), "aarch64": Processor(0xC00000B7, 1)}


def seccomp_filter(processor: str = "") -> bytes | None:
    """The filter for a kind of processor, by default this one; None where it has none or the kernel takes none.

    Programs of another architecture, 32-bit ones as well, are refused every call.
    """
    kind = PROCESSORS.get(processor or platform.machine())
    if kind is None or "\nSeccomp:" not in Path("/proc/self/status").read_text():
        return None
    numbers = sorted(each for pair in DENIED.values() if (each := pair[kind.column]) is not None)
    refuse = 5 + len(numbers)  # the last instruction; jumps are counted from the one after the jump
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, refuse - 2, kind.audit),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, refuse - 4, 0, _X32),
        *((_EQUAL, refuse - line - 1, 0, number) for line, number in enumerate(numbers, 4)),
    ]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
