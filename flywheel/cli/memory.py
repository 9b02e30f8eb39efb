"""How much memory this process and everything it started take together, at the most."""

import threading
from pathlib import Path

EVERY = 2.0
"""Seconds between two looks; one look costs about 6 ms a process that has imported torch."""


class PeakMemory:
    """`with PeakMemory() as peak: ...; peak.gigabytes`.

    Counts proportional set size: pages that forked processes share are counted once. None off Linux.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def gigabytes(self) -> float | None:
        """10^9 bytes."""
        return self._peak / 1e9 if self._peak else None

    def _watch(self) -> None:
        while True:
            self._peak = max(self._peak, family_bytes())
            if self._ended.wait(EVERY):
                return


def family_bytes() -> int:
    """Proportional set size of this process and all its descendants; 0 where `/proc` does not say."""
    waiting = ["self"]
    total = 0
    while waiting:
        process = Path("/proc") / waiting.pop()
        try:
            children = [
                child for task in (process / "task").iterdir() for child in (task / "children").read_text().split()
            ]
            rollup = (process / "smaps_rollup").read_text()
        except OSError:
            continue
        waiting += children
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total
