"""The episodes of one partition, sealed or live, in one shape.

Both are in ascending order of episode id whatever order they were published in, so that what is built from them
depends on nothing but their content.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.store.blobs import PackFile, checked
from flywheel.store.disk import damage
from flywheel.store.heads import Head, Segment, read_head
from flywheel.store.layout import Layout, episode_name, file_name
from flywheel.store.live import load, load_episode
from flywheel.store.rows import decode
from flywheel.store.schema import EPISODES_SCHEMA, STEPS_SCHEMA
from flywheel.types import Trajectory


class Source(Protocol):
    """Where a partition's episodes are read from."""

    def ids(self, success: bool | None) -> list[str]:
        """Ascending; only those with this success, unless it is None."""
        ...

    def read(self, ids: Collection[str] | None, success: bool | None) -> Iterator[Trajectory]:
        """Ascending; only the named ones, unless `ids` is None."""
        ...


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Episodes that are published and not sealed: a file each."""

    folder: Path

    def ids(self, success: bool | None) -> list[str]:
        return [episode_name(path) for path in live_files(self.folder) if success is None or _success(path) == success]

    def read(self, ids: Collection[str] | None, success: bool | None) -> Iterator[Trajectory]:
        if ids is None:
            files = live_files(self.folder)
        else:
            files = [path for name in sorted(set(ids)) if (path := self.folder / file_name(name)).exists()]
        for path in files:
            if success is None or _success(path) == success:
                live = load(path)
                yield from decode(live.episode, live.steps, partial(_slice, live.images, path))


def live_files(folder: Path) -> list[Path]:
    """Files of the live episodes in an attempt, in ascending order of their ids."""
    return sorted(folder.iterdir(), key=episode_name)


def _success(path: Path) -> bool:
    succeeded: bool = load_episode(path).column("success")[0].as_py()
    return succeeded


def _slice(images: bytes, path: Path, step: Mapping[str, Any]) -> bytes:
    start = step["image_offset"]
    return checked(images[start : start + step["image_length"]], step["image_hash"], path)


@dataclass(frozen=True, slots=True)
class SealedSource:
    """Episodes in segments. A row group of steps holds whole episodes only, about 256 rows of them."""

    root: Path
    head: Head

    def ids(self, success: bool | None) -> list[str]:
        names: list[str] = []
        for segment in self.head.segments:
            table = read_table(self.root / segment.episodes_file, EPISODES_SCHEMA, ["episode_id", "success"])
            names += table.filter(pa.array(_mask(table, None, success))).column("episode_id").to_pylist()
        return names

    def read(self, ids: Collection[str] | None, success: bool | None) -> Iterator[Trajectory]:
        with PackFile(self.root) as blob:
            for segment in self.head.segments:
                for episodes, steps in self._batches(segment, ids, success):
                    yield from decode(episodes, steps, blob)

    def _batches(
        self, segment: Segment, ids: Collection[str] | None, success: bool | None
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Episodes, and their steps in the same order; one row group at a time."""
        path = self.root / segment.episodes_file
        if ids is not None and set(ids).isdisjoint(
            read_table(path, EPISODES_SCHEMA, ["episode_id"])["episode_id"].to_pylist()
        ):
            return
        episodes = read_table(path, EPISODES_SCHEMA)
        wanted = _mask(episodes, ids, success)
        lengths = episodes.column("n_steps").to_numpy()
        starts = np.cumsum(lengths) - lengths
        path = self.root / segment.steps_file
        with open_parquet(path, STEPS_SCHEMA) as file:
            counts = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            ends = np.cumsum(counts)
            group_of = np.minimum(np.searchsorted(ends, starts, side="right"), len(ends) - 1)
            for group in np.unique(group_of[wanted]):
                chosen = np.flatnonzero(wanted & (group_of == group))
                steps = file.read_row_group(int(group), use_threads=False)
                first = ends[group] - counts[group]
                rows = np.concatenate([np.arange(starts[i], starts[i] + lengths[i]) for i in chosen]) - first
                yield episodes.take(chosen), steps if len(rows) == steps.num_rows else steps.take(rows)


def open_source(layout: Layout, experiment: str, partition: str, attempt: int | None = None) -> Source | None:
    """The sealed episodes, or else those of the newest live attempt; only those of `attempt`, where it is given."""
    head = read_head(layout, experiment, partition)
    if head is not None and attempt in (None, head.attempt):
        return SealedSource(layout.root, head)
    attempts = [known for known in layout.attempts(experiment, partition) if attempt in (None, known)]
    return LiveSource(layout.attempt(experiment, partition, attempts[-1])) if attempts else None


def read_table(path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """A whole parquet file that has this schema. Raises `CorruptTrajectoryError`."""
    with open_parquet(path, schema) as file:
        return file.read(columns, use_threads=False)


@contextmanager
def open_parquet(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Pages are checked against their checksums and, as footers have none, the schema against what it must be."""
    with damage(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        if not file.schema_arrow.equals(schema):
            raise pa.ArrowInvalid("another schema")
        yield file


def _mask(episodes: pa.Table, ids: Collection[str] | None, success: bool | None) -> np.ndarray:
    """bool, one for each row."""
    mask = np.ones(episodes.num_rows, bool)
    if success is not None:
        mask &= episodes.column("success").to_numpy() == success
    if ids is not None:
        names = set(ids)
        mask &= np.fromiter((name in names for name in episodes.column("episode_id").to_pylist()), bool, len(mask))
    return mask
