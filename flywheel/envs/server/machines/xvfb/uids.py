"""A host user id for each desktop, where the worker is root.

Two desktops of one uid could signal each other's host processes if a sandbox ever failed, and would share what the
kernel counts by user. The range is the one that systemd's table of uids leaves free below 65536 (so that it is mapped
in most containers as well): nobody's account, no package's.

A uid is claimed by binding an abstract socket. The kernel frees it with the process, it leaves no file, and every
server of the same network namespace sees it: servers in different ones must not share a process namespace.
"""

import os
import socket
from pathlib import Path

from flywheel.errors import InfrastructureError

UIDS = range(60706, 61184)


class Uid:
    """A claimed uid; `release` gives it back."""

    def __init__(self, number: int, claim: socket.socket) -> None:
        self.number = number
        self._claim = claim

    def release(self) -> None:
        self._claim.close()


def can_claim() -> bool:
    """Whether processes can get these uids: for root, unless of a user namespace that does not map them."""
    mapped = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    spans = ((int(inside), int(inside) + int(count)) for inside, _, count in mapped)
    return os.geteuid() == 0 and any(start <= UIDS.start and UIDS.stop <= stop for start, stop in spans)


def claim_uid() -> Uid:
    """The first uid that nobody claims and no process has. Raises `InfrastructureError` when all are taken."""
    busy = {uid for uid, _ in _owners()}
    for number in UIDS:
        if number not in busy and (uid := try_claim(number)) is not None:
            return uid
    raise InfrastructureError(f"all {len(UIDS)} user ids for desktops are taken on this host; stop some desktops.")


def try_claim(number: int) -> Uid | None:
    """None when another process holds it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0flywheel-desktop-uid-{number}")
    except OSError:
        claim.close()
        return None
    return Uid(number, claim)


def processes_of(uids: range) -> dict[int, list[int]]:
    """uid -> process ids, for uids in the range that have any."""
    found: dict[int, list[int]] = {}
    for uid, pid in _owners():
        if uid in uids:
            found.setdefault(uid, []).append(pid)
    return found


def _owners() -> list[tuple[int, int]]:
    """(real uid, pid) of every process that lives; a zombie holds nothing, and some containers' init never reaps."""
    owners = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                status = Path(entry.path, "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if "\nState:\tZ" not in status:
                uid = status.partition("\nUid:")[2].split(maxsplit=1)[0]
                owners.append((int(uid), int(entry.name)))
    return owners
