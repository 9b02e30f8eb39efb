"""Publishing behind the back of whoever plays or trains: writing and flushing must not keep an engine waiting."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from flywheel.store.store import TrajectoryStore
from flywheel.types import Trajectory


@dataclass(frozen=True, slots=True)
class Publication:
    """Where trajectories go: an attempt at a partition."""

    partition: str
    attempt: int


class Publisher:
    """Publishes in one thread, in order. Close it with `flush` done, or what is left goes unreported.

    Args:
        store: written to.
        publication: an attempt that somebody holds.
        together: so many episodes share one flush of the partition's folder.
    """

    def __init__(self, store: TrajectoryStore, publication: Publication, together: int = 16) -> None:
        self._store, self._publication, self._together = store, publication, together
        self._waiting: list[Trajectory] = []
        self._pending: list[Future[list[str]]] = []
        self._thread = ThreadPoolExecutor(1, "publisher")

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        self._waiting += trajectories
        if len(self._waiting) >= self._together:
            self._send()

    def flush(self) -> None:
        """Wait until everything is published; raises what went wrong."""
        self._send()
        for future in self._pending:
            future.result()
        self._pending = []

    def close(self) -> None:
        """End the thread, once it is done with what it has."""
        self._thread.shutdown()

    def _send(self) -> None:
        if self._waiting:
            self._pending.append(self._thread.submit(self._publish, self._waiting))
            self._waiting = []

    def _publish(self, trajectories: list[Trajectory]) -> list[str]:
        where = self._publication
        return self._store.publish_many(trajectories, partition=where.partition, attempt=where.attempt)
