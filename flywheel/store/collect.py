"""Garbage collection: what no head names and no reader can still be reading."""

import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flywheel.errors import PartitionBusyError
from flywheel.store.disk import disk_errors
from flywheel.store.heads import Head, read_head
from flywheel.store.layout import Layout
from flywheel.store.locks import drop, take


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed."""

    files: int
    bytes: int


def collect(layout: Layout, grace_seconds: float) -> Collected:
    """Remove what nobody needs, once it is `grace_seconds` old: abandoned staging, live episodes of sealed
    attempts, attempts that a newer one replaced, segments that no head names.

    The period must be longer than one publish takes, and than the longest reader keeps its connection. Partitions
    that a process holds are left alone.
    """
    before = time.time() - grace_seconds
    with disk_errors("collect garbage", layout.root):
        removed = [_remove(path) for path in _children(layout.tmp) if _modified(path) <= before]
        for experiment in layout.experiments():
            for partition in layout.partitions(experiment):
                removed += _collect_partition(layout, experiment, partition, before)
    return Collected(sum(files for files, _ in removed), sum(size for _, size in removed))


def _collect_partition(layout: Layout, experiment: str, partition: str, before: float) -> list[tuple[int, int]]:
    lock = layout.lock(experiment, partition, "owner")
    try:
        if not take(lock, partition):
            return []
    except PartitionBusyError:
        return []
    try:
        head = read_head(layout, experiment, partition)
        attempts = _replaced_attempts(layout, experiment, partition, head)
        segments = _unnamed(layout, experiment, partition, head)
        return [_remove(path) for path, since in [*attempts, *segments] if since <= before]
    finally:
        drop(lock)


def _replaced_attempts(
    layout: Layout, experiment: str, partition: str, head: Head | None
) -> Iterator[tuple[Path, float]]:
    """Live attempts but the one that is still being made, and when they became useless."""
    attempts = layout.attempts(experiment, partition)
    sealed = head.attempt if head else 0
    for attempt in attempts:
        if attempt <= sealed or attempt < attempts[-1]:
            live = layout.attempt(experiment, partition, attempt)
            mirror = layout.mirror(experiment, partition, attempt)
            changed = max(_modified(live), _modified(live.parent), _modified(mirror) if mirror.exists() else 0.0)
            since = max(changed, head.sealed_at if head else 0.0)
            yield from ((path, since) for path in (live, mirror) if path.exists())


def _unnamed(layout: Layout, experiment: str, partition: str, head: Head | None) -> Iterator[tuple[Path, float]]:
    """Files of segments that the head does not name, and when it stopped to."""
    named = {layout.root / name for segment in (head.segments if head else ()) for name in segment.files}
    for path in layout.segments(experiment, partition, 0).parent.glob("*/*"):
        if path not in named:
            yield path, max(_modified(path), head.sealed_at if head else 0.0)


def _remove(path: Path) -> tuple[int, int]:
    """How many files, and how many bytes; none if it has gone meanwhile."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    try:
        size = sum(file.stat().st_size for file in files)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return 0, 0
    return len(files), size


def _modified(path: Path) -> float:
    """Seconds since the epoch; never, for what has gone meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
