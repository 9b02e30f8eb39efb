"""Durable writes, and the operating system's errors as sentences."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from flywheel.errors import CorruptTrajectoryError, StoreError, StoreFullError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn an `OSError` into `StoreFullError` or `StoreError`; `doing` completes "Cannot ..."."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(
                f"Cannot {doing}: no space is left under {where}; free some and run it again, nothing was half written."
            ) from error
        reason = error.strerror or str(error)
        raise StoreError(f"Cannot {doing}: {reason.lower()} ({error.filename or where}).") from error


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """What pyarrow raises on a damaged or missing file, as one sentence: its own errors carry no errno."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptTrajectoryError(f"{path} is missing; roll its partition out again.") from error
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StoreError(f"{path} cannot be read: {os.strerror(error.errno).lower()}.") from error
        raise CorruptTrajectoryError(f"{path} is damaged; roll its partition out again.") from error


def write_file(path: Path, chunks: Iterable[bytes | memoryview], sync: bool) -> None:
    """Create `path` with the chunks after each other, flushed to the disk if `sync`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_path(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_dirs(path: Path, sync: bool) -> None:
    """Create a directory and its parents; each new name is flushed in the directory that holds it."""
    if path.is_dir():
        return
    make_dirs(path.parent, sync)
    path.mkdir(exist_ok=True)
    if sync:
        sync_path(path.parent)


def replace_file(path: Path, data: bytes, staged: Path, sync: bool) -> None:
    """Put `data` at `path` in one atomic step, by way of `staged` on the same file system."""
    make_dirs(path.parent, sync)
    try:
        write_file(staged, [data], sync)
        os.replace(staged, path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
    if sync:
        sync_path(path.parent)
