"""Sealing: the live episodes of one attempt become segments, and the partition's head names them.

Row groups of steps hold whole episodes (see `mirror.grouped`).
"""

import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flywheel.errors import StoreError
from flywheel.store.blobs import checked
from flywheel.store.disk import disk_errors, make_dirs, sync_path
from flywheel.store.heads import Head, Segment, read_head, write_head
from flywheel.store.layout import Layout
from flywheel.store.live import LiveEpisode, load
from flywheel.store.mirror import grouped
from flywheel.store.schema import EPISODES_SCHEMA, STEPS_SCHEMA
from flywheel.store.sources import live_files

SEGMENT_BYTES = 1 << 30


def seal(layout: Layout, experiment: str, partition: str, attempt: int, expected: int | None, sync: bool) -> Head:
    """Compact and commit; the caller holds the partition's owner lock and its gate. See `TrajectoryStore.seal`."""
    head = read_head(layout, experiment, partition)
    if head is not None and head.attempt > attempt:
        raise StoreError(
            f"Partition '{partition}' is sealed at attempt {head.attempt}, so attempt {attempt} is out of date; "
            "begin a new attempt to replace it."
        )
    if head is not None and head.attempt == attempt:
        _check_count(partition, attempt, head.episodes, expected)
        return head
    live = layout.attempt(experiment, partition, attempt)
    if not live.is_dir():
        raise StoreError(
            f"Partition '{partition}' has no attempt {attempt} to seal; publish into it or check its name."
        )
    files = live_files(live)
    _check_count(partition, attempt, len(files), expected)
    with disk_errors(f"seal partition '{partition}'", layout.root):
        segments = _compact(layout, layout.segments(experiment, partition, attempt), files, sync)
    head = Head(experiment, partition, attempt, time.time(), segments)
    write_head(layout, head, sync)
    return head


def _check_count(partition: str, attempt: int, found: int, expected: int | None) -> None:
    if expected is None or found == expected:
        return
    much = f"{expected - found} missing" if found < expected else f"{found - expected} too many"
    raise StoreError(
        f"Partition '{partition}' attempt {attempt} holds {found} of {expected} episodes ({much}); "
        "publish what is missing or begin a new attempt."
    )


def _compact(layout: Layout, target: Path, files: list[Path], sync: bool) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    make_dirs(target, sync)
    try:
        for run in _split(files):
            segments.append(_write_segment(layout, target, run, sync))
    except (OSError, StoreError):
        for segment in segments:
            _discard(layout.root / name for name in segment.files)
        raise
    if sync:
        sync_path(target)
    return tuple(segments)


def _split(files: list[Path]) -> Iterator[list[Path]]:
    """Runs of about `SEGMENT_BYTES`."""
    run: list[Path] = []
    size = 0
    for file in files:
        run.append(file)
        size += file.stat().st_size
        if size >= SEGMENT_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _write_segment(layout: Layout, target: Path, files: list[Path], sync: bool) -> Segment:
    """Three files under a name that was never used before; none of them is left behind by a failure."""
    name = uuid.uuid4().hex[:12]
    paths = (target / f"episodes-{name}.parquet", target / f"steps-{name}.parquet", target / f"blobs-{name}.pack")
    episodes_path, steps_path, blobs_path = paths
    pack = layout.relative(blobs_path)
    try:
        with blobs_path.open("xb") as blobs:
            episodes, steps = _merge(files, steps_path, blobs, pack)
            size = blobs.tell()
        pq.write_table(episodes, episodes_path, compression="zstd", write_page_checksum=True)
        if sync:
            for path in paths:
                sync_path(path)
    except (OSError, StoreError):
        _discard(paths)
        raise
    return Segment(
        layout.relative(episodes_path), layout.relative(steps_path), pack, episodes.num_rows, steps, bytes=size
    )


def _merge(files: list[Path], steps_path: Path, blobs: BinaryIO, pack: str) -> tuple[pa.Table, int]:
    """Append steps and images; the episodes and the number of steps."""
    episodes: list[pa.RecordBatch] = []

    def moved() -> Iterator[pa.RecordBatch]:
        for file in files:
            live = load(file)
            _check_images(file, live)
            episodes.append(live.episode)
            yield _moved(live.steps, pack, blobs.tell())
            blobs.write(live.images)

    total = 0
    with pq.ParquetWriter(steps_path, STEPS_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for group in grouped(moved()):
            writer.write_table(group)
            total += group.num_rows
    return pa.Table.from_batches(episodes, EPISODES_SCHEMA), total


def _moved(steps: pa.RecordBatch, pack: str, by: int) -> pa.RecordBatch:
    """The same rows, with their images at their new place."""
    offsets = pc.add(steps.column("image_offset"), by)
    packs = pc.if_else(pc.is_valid(offsets), pack, pa.scalar(None, pa.string()))
    place = {"image_offset": offsets, "image_pack": packs}
    return pa.RecordBatch.from_arrays(
        [place.get(name, steps.column(name)) for name in STEPS_SCHEMA.names], schema=STEPS_SCHEMA
    )


def _check_images(file: Path, live: LiveEpisode) -> None:
    """Every image against its hash: damage must not be sealed in."""
    rows = zip(*(live.steps.column(f"image_{name}").to_pylist() for name in ("hash", "offset", "length")), strict=True)
    for digest, offset, length in set(rows):
        if digest is not None:
            checked(live.images[offset : offset + length], digest, file)


def _discard(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
