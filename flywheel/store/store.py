"""The trajectory store: publish, seal, read, query. Writers never open DuckDB; readers never wait for writers."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Literal

import duckdb

from flywheel.errors import StoreError, StoreFullError
from flywheel.store.catalog import connect, refresh
from flywheel.store.collect import Collected, collect
from flywheel.store.disk import disk_errors, make_dirs
from flywheel.store.heads import Head, read_head
from flywheel.store.layout import Layout, check_attempt, check_name
from flywheel.store.locks import drop, gate, take
from flywheel.store.seal import seal
from flywheel.store.sources import SealedSource, Source, open_source
from flywheel.store.writer import Staged, Writer
from flywheel.types import Trajectory


class TrajectoryStore:
    """Every trajectory under `root`, by experiment, partition and attempt.

    A partition is what is rolled out together (`iter-01`). Episodes are published one by one, each by one rename, and
    seen at once; sealing turns them into the partition's content in one atomic step. A later attempt at the same
    partition replaces the earlier one when it is sealed, and is not seen before.

    Args:
        root: created if it is not there.
        codec: lossless codec for raw screenshots; encoded ones keep their own bytes.
        fsync: whether a publish is flushed to the disk before it returns. Without it a power cut, though not a
            killed process, can lose acknowledged episodes.

    Every method raises `StoreError` or a class below it, in one sentence.
    """

    def __init__(self, root: str | PathLike[str], *, codec: Literal["png", "webp"] = "png", fsync: bool = True) -> None:
        self.root = Path(root).expanduser().absolute()
        self._layout = Layout(self.root)
        self._layout.create(fsync)
        self._sync = fsync
        self._writer = Writer(self._layout, codec, fsync)

    # --- writing -----------------------------------------------------------------------------------

    def begin(self, partition: str, experiment: str = "default") -> int:
        """Hold the partition until `seal` or `release` (or the end of this process); the ordinal of the new attempt.

        Raises `PartitionBusyError` when another process holds it.
        """
        self._own(partition, experiment)
        head = read_head(self._layout, experiment, partition)
        attempt = 1 + max([head.attempt if head else 0, *self._layout.attempts(experiment, partition)])
        with disk_errors(f"begin partition '{partition}'", self.root):
            make_dirs(self._layout.attempt(experiment, partition, attempt), self._sync)
        return attempt

    def release(self, partition: str, experiment: str = "default") -> None:
        """Let go of a partition that this process began and will not seal; harmless otherwise."""
        drop(self._layout.lock(experiment, partition, "owner"))

    def publish(self, trajectory: Trajectory, *, partition: str, attempt: int = 1) -> str:
        """Make one trajectory durable and visible; its id. Publishing it again is a success that changes nothing.

        Workers may publish side by side, in threads or processes; none of them needs the lock of `begin`.
        """
        return self.publish_many([trajectory], partition=partition, attempt=attempt)[0]

    def publish_many(self, trajectories: Sequence[Trajectory], *, partition: str, attempt: int = 1) -> list[str]:
        """As `publish`, with one flush of the folder for all. Each trajectory is atomic, the batch is not."""
        check_name("partition", partition)
        check_attempt(attempt)
        for experiment, group in groupby(trajectories, lambda trajectory: trajectory.experiment):
            check_name("experiment", experiment)
            self._publish(list(group), partition, experiment, attempt)
        return [trajectory.id for trajectory in trajectories]

    def _publish(self, trajectories: list[Trajectory], partition: str, experiment: str, attempt: int) -> None:
        staged: list[Staged] = []
        try:
            for trajectory in trajectories:
                staged.append(self._writer.stage(trajectory, partition, attempt))
            with self._gate(partition, experiment, exclusive=False):
                head = read_head(self._layout, experiment, partition)
                if head is None or head.attempt < attempt:
                    self._writer.reveal(staged)
                    return
        except StoreError:
            for episode in staged:
                episode.discard()
            raise
        for episode in staged:
            episode.discard()
        self._require_sealed(head, attempt, [trajectory.id for trajectory in trajectories])

    def _require_sealed(self, head: Head, attempt: int, ids: list[str]) -> None:
        """A retry may come after the seal: what is in it already is a success."""
        known = SealedSource(self.root, head).ids(None) if head.attempt == attempt else []
        late = sorted(set(ids).difference(known))
        if late:
            raise StoreError(
                f"Trajectory '{late[0]}' came too late for attempt {attempt} of partition '{head.partition}', which is "
                f"sealed at attempt {head.attempt}; begin a new attempt."
            )

    def seal(self, partition: str, attempt: int, expected: int | None = None, experiment: str = "default") -> Head:
        """Make this attempt the content of the partition; sealing it again gives the same head.

        Raises `StoreError` when the attempt does not hold `expected` episodes (None does not check), or when a later
        attempt is sealed; `PartitionBusyError` when another process holds the partition.
        """
        check_attempt(attempt)
        newly = self._own(partition, experiment)
        try:
            with self._gate(partition, experiment, exclusive=True):
                head = seal(self._layout, experiment, partition, attempt, expected, self._sync)
        except StoreError:
            if newly:
                self.release(partition, experiment)
            raise
        self.release(partition, experiment)
        with suppress(StoreFullError):  # sealed all the same: the catalog is derived, the next reader makes it
            refresh(self._layout)
        return head

    def _own(self, partition: str, experiment: str) -> bool:
        """False if this process held the partition before."""
        check_name("partition", partition)
        check_name("experiment", experiment)
        with disk_errors(f"lock partition '{partition}'", self.root):
            return take(self._layout.lock(experiment, partition, "owner"), partition)

    @contextmanager
    def _gate(self, partition: str, experiment: str, *, exclusive: bool) -> Iterator[None]:
        with (
            disk_errors(f"write to partition '{partition}'", self.root),
            gate(self._layout.lock(experiment, partition, "gate"), exclusive=exclusive),
        ):
            yield

    def gc(self, grace_seconds: float) -> Collected:
        """Remove what no head names and no reader can still be reading; see `collect`."""
        return collect(self._layout, grace_seconds)

    # --- reading -----------------------------------------------------------------------------------

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A read-only DuckDB connection with the views of docs/store.md.

        It sees what is sealed, and the live episodes of partitions that are not, as they are now: a fixed snapshot.
        """
        return connect(self._layout)

    def read(self, trajectory_id: str, *, partition: str | None = None, experiment: str | None = None) -> Trajectory:
        """One trajectory, wherever it is; equal to what was published, raw screenshots losslessly encoded.

        Raises `CorruptTrajectoryError` when its bytes do not match their hash; `StoreError` when it is unknown, or is
        in several partitions and neither `partition` nor `experiment` says which.
        """
        found: dict[str, Trajectory] = {}
        for name, source in self._sources(partition, experiment):
            for trajectory in source.read([trajectory_id], None):
                found[name] = trajectory
        if not found:
            raise StoreError(
                f"There is no trajectory '{trajectory_id}' in {self.root}; `flywheel trajectories` lists what is there."
            )
        if len(found) > 1:
            raise StoreError(
                f"Trajectory '{trajectory_id}' is in {' and '.join(sorted(found))}; say which experiment and partition."
            )
        return next(iter(found.values()))

    def iter(
        self,
        partition: str,
        *,
        experiment: str = "default",
        success: bool | None = None,
        ids: Collection[str] | None = None,
        attempt: int | None = None,
    ) -> Iterator[Trajectory]:
        """A partition's trajectories in ascending order of id, a few at a time in memory.

        Args:
            success: only those that succeeded (or did not), by the task reward.
            ids: only these; unknown ones are left out.
            attempt: this one in place of what everybody sees: what its own writer reads before it is sealed.
        Raises: `StoreError` when there is no such partition.
        """
        yield from self._source(partition, experiment, attempt).read(ids, success)

    def trajectories(
        self,
        partition: str,
        *,
        experiment: str = "default",
        success: bool | None = None,
        ids: Collection[str] | None = None,
    ) -> list[Trajectory]:
        """As `iter`, all at once."""
        return list(self.iter(partition, experiment=experiment, success=success, ids=ids))

    def ids(self, partition: str, *, experiment: str = "default", success: bool | None = None) -> list[str]:
        """Ids of a partition's trajectories, ascending; reads no steps and no images."""
        return self._source(partition, experiment).ids(success)

    def head(self, partition: str, experiment: str = "default") -> Head | None:
        """What is sealed of a partition; None while nothing is."""
        return read_head(self._layout, experiment, partition)

    def partitions(self, experiment: str = "default") -> list[str]:
        """Names of everything that was begun, published into or sealed, ascending."""
        return self._layout.partitions(experiment)

    def experiments(self) -> list[str]:
        """Names, ascending."""
        return self._layout.experiments()

    def _source(self, partition: str, experiment: str, attempt: int | None = None) -> Source:
        source = open_source(self._layout, experiment, partition, attempt)
        if source is None:
            known = ", ".join(self.partitions(experiment)) or "none yet"
            raise StoreError(f"There is no partition '{partition}' in experiment '{experiment}' (known: {known}).")
        return source

    def _sources(self, partition: str | None, experiment: str | None) -> Iterator[tuple[str, Source]]:
        for name in [experiment] if experiment else self.experiments():
            for part in [partition] if partition else self.partitions(name):
                source = open_source(self._layout, name, part)
                if source is not None:
                    yield f"{name}/{part}", source
