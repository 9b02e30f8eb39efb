"""What SQL sees of live episodes: parquet files, copied from them when somebody asks.

    root/mirror/<experiment>/<partition>/<attempt>/{episodes,steps}-<id>.parquet

Each copy holds what has come since the one before, so thousands of live episodes are a few files to a query. The
file of episodes appears last and makes the copy count. All of it is derived and may be deleted at any time.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.store.disk import make_dirs
from flywheel.store.layout import Layout, file_name
from flywheel.store.live import load
from flywheel.store.schema import EPISODES_SCHEMA, STEPS_SCHEMA
from flywheel.store.sources import live_files, read_table

GROUP_ROWS = 256
"""Rows of `steps` that share a row group, roughly: a group holds whole episodes."""
FILES_TOGETHER = 1000
"""Episodes whose rows of `episodes` are held in memory at once."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """The copy of one live attempt."""

    live: Path
    folder: Path

    @classmethod
    def of(cls, layout: Layout, experiment: str, partition: str, attempt: int) -> "Mirror":
        return cls(layout.attempt(experiment, partition, attempt), layout.mirror(experiment, partition, attempt))

    @property
    def episodes(self) -> list[Path]:
        return sorted(self.folder.glob("episodes-*.parquet"))

    @property
    def steps(self) -> list[Path]:
        return [path.with_name(path.name.replace("episodes", "steps")) for path in self.episodes]

    @property
    def missing(self) -> list[Path]:
        """Files of live episodes that are not copied yet."""
        copied = {
            file_name(name)
            for path in self.episodes
            for name in read_table(path, EPISODES_SCHEMA, ["episode_id"]).column(0).to_pylist()
        }
        return [path for path in live_files(self.live) if path.name not in copied]

    def catch_up(self, layout: Layout) -> None:
        """Copy what is missing; the caller holds the lock of the catalog."""
        missing = self.missing
        for first in range(0, len(missing), FILES_TOGETHER):
            self._copy(layout, missing[first : first + FILES_TOGETHER])

    def _copy(self, layout: Layout, files: list[Path]) -> None:
        staged = layout.staging(), layout.staging()
        with ExitStack() as undo:
            for path in staged:
                undo.callback(path.unlink, missing_ok=True)
            episodes: list[pa.RecordBatch] = []

            def steps() -> Iterator[pa.RecordBatch]:
                for file in files:
                    live = load(file, images=False)
                    episodes.append(live.episode)
                    yield live.steps

            with pq.ParquetWriter(staged[1], STEPS_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
                for group in grouped(steps()):
                    writer.write_table(group)
            table = pa.Table.from_batches(episodes)
            pq.write_table(table, staged[0], compression="zstd", write_page_checksum=True)
            make_dirs(self.folder, sync=False)
            name = uuid.uuid4().hex[:12]
            os.replace(staged[1], self.folder / f"steps-{name}.parquet")
            os.replace(staged[0], self.folder / f"episodes-{name}.parquet")


def grouped(steps: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows of whole episodes, about `GROUP_ROWS` together.

    One group for each episode was measured against it on 10,000 steps of 4-step episodes: 127 ms a query instead of 5,
    12.5 MB instead of 3.3, and no faster fetch (the footer alone takes 43 ms to read).
    """
    pending: list[pa.RecordBatch] = []
    for batch in steps:
        pending.append(batch)
        if sum(each.num_rows for each in pending) >= GROUP_ROWS:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)
