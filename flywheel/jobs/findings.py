"""What a check of `flywheel doctor` says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at and found. `mend` says what to do, and only where `ok` is False."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


def judged(name: str, ok: bool, detail: str, mend: str) -> Finding:
    """A finding that keeps its remedy only when it needs one."""
    return Finding(name, ok, detail, "" if ok else mend)
