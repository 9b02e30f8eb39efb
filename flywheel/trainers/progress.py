"""What a trainer tells whoever runs it; the heavy jobs' `Progress` is one."""

from collections.abc import Mapping
from typing import Protocol


class Report(Protocol):
    """Curves and progress."""

    def advance(self, done: int, total: int, unit: str) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...


class Silent:
    """Nobody is told."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Nothing."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Nothing."""
