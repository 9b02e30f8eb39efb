"""When a server that does not answer may be asked again."""

import time

OPEN_AFTER, LONGEST_REST = 2, 60.0
"""Failures in a row after which a server is left alone, and for how many seconds at most."""


class Breaker:
    """Leaves a server alone that does not answer: for 2 s, then twice as long each time, until it answers once."""

    def __init__(self) -> None:
        self._failures, self._until = 0, 0.0

    @property
    def closed(self) -> bool:
        """Whether the server may be asked now."""
        return time.monotonic() >= self._until

    def worked(self) -> None:
        self._failures, self._until = 0, 0.0

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= OPEN_AFTER:
            self.rest(min(LONGEST_REST, 2.0 ** (self._failures - OPEN_AFTER + 1)))

    def rest(self, seconds: float) -> None:
        """Ask nothing of it for so long."""
        self._until = time.monotonic() + seconds
