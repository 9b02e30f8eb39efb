"""The catalog: a small DuckDB file of views over explicit lists of files, rebuilt when the lists change.

It is derived and may be deleted at any time. Its storage version is 1.5, so that the `duckdb` command line reads it
too. A connection is a fixed snapshot: what is published or sealed later appears in the next one.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from flywheel.errors import StoreError, StoreFullError
from flywheel.store.disk import disk_errors, make_dirs
from flywheel.store.heads import read_head
from flywheel.store.layout import Layout
from flywheel.store.mirror import Mirror
from flywheel.store.schema import DERIVED, EPISODES, STEPS, Column, duckdb_type

STORAGE_VERSION = "v1.5.0"
BLOCK_SIZE = 16384
"""The smallest; the catalog holds nothing but views."""


@dataclass(slots=True)
class Files:
    """Every parquet file that is visible: those of sealed segments, and the copies of live attempts as they are now."""

    sealed_episodes: list[Path] = field(default_factory=list)
    sealed_steps: list[Path] = field(default_factory=list)
    live: list[Mirror] = field(default_factory=list)

    @property
    def episodes(self) -> list[Path]:
        return [*self.sealed_episodes, *(path for mirror in self.live for path in mirror.episodes)]

    @property
    def steps(self) -> list[Path]:
        return [*self.sealed_steps, *(path for mirror in self.live for path in mirror.steps)]


def visible_files(layout: Layout) -> Files:
    """Sealed segments, and the newest live attempt of partitions without a head."""
    files = Files()
    for experiment in layout.experiments():
        for partition in layout.partitions(experiment):
            head = read_head(layout, experiment, partition)
            if head is not None:
                files.sealed_episodes += [layout.root / segment.episodes_file for segment in head.segments]
                files.sealed_steps += [layout.root / segment.steps_file for segment in head.segments]
            elif attempts := layout.attempts(experiment, partition):
                files.live.append(Mirror.of(layout, experiment, partition, attempts[-1]))
    return files


def _caught_up(layout: Layout) -> Files:
    """What is visible, once every live episode of now is copied; the caller holds the lock."""
    files = visible_files(layout)
    for mirror in files.live:
        mirror.catch_up(layout)
    return files


def view_statements(files: Files) -> list[str]:
    """The DDL of every view."""
    base = [_view("episodes", EPISODES, files.episodes), _view("steps", STEPS, files.steps)]
    return base + [f"CREATE VIEW {view.name} AS {view.sql}" for view in DERIVED]


def _view(name: str, columns: tuple[Column, ...], files: list[Path]) -> str:
    if not files:  # DuckDB does not accept an empty list of them
        nothing = ", ".join(f"CAST(NULL AS {duckdb_type(column)}) AS {column.name}" for column in columns)
        return f"CREATE VIEW {name} AS SELECT {nothing} WHERE false"
    shown = ", ".join(f"{column.sql} AS {column.name}" if column.sql else column.name for column in columns)
    listed = ", ".join(quoted(file) for file in files)
    return f"CREATE VIEW {name} AS SELECT {shown} FROM read_parquet([{listed}])"


def quoted(path: Path) -> str:
    """A path as a string in SQL."""
    return "'" + str(path).replace("'", "''") + "'"


def refresh(layout: Layout) -> None:
    """Rebuild the catalog from what is there now."""
    with disk_errors("rebuild the catalog", layout.root), _lock(layout):
        _build(layout, view_statements(_caught_up(layout)))


def connect(layout: Layout) -> duckdb.DuckDBPyConnection:
    """A read-only connection to an up-to-date catalog, which it keeps even when the file is replaced."""
    with disk_errors("open the catalog", layout.root):
        files = visible_files(layout)
        if not any(mirror.missing for mirror in files.live):
            connection = _open(layout, _fingerprint(view_statements(files)))
            if connection is not None:
                return connection
        with _lock(layout):
            statements = view_statements(_caught_up(layout))
            connection = _open(layout, _fingerprint(statements))
            if connection is None:
                _build(layout, statements)
                connection = _open(layout, _fingerprint(statements))
    if connection is None:
        raise StoreError(f"{layout.catalog} was replaced while it was opened; run it again.")
    return connection


def _open(layout: Layout, fingerprint: str) -> duckdb.DuckDBPyConnection | None:
    """By a name of its own: DuckDB hands out the old file again when one process opens the same name twice."""
    name = layout.staging()
    try:
        os.link(layout.catalog, name)
    except FileNotFoundError:
        return None
    try:
        connection = duckdb.connect(str(name), read_only=True)
        if connection.execute("SELECT fingerprint FROM internal.catalog").fetchall() == [(fingerprint,)]:
            return connection
        connection.close()
    except duckdb.Error:
        return None
    finally:
        name.unlink()
    return None


def _build(layout: Layout, statements: list[str]) -> None:
    staged = layout.staging()
    try:
        with duckdb.connect() as connection:
            options = f"STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {BLOCK_SIZE}"
            connection.execute(f"ATTACH {quoted(staged)} AS staged ({options})")
            connection.execute("USE staged")
            for statement in statements:
                connection.execute(statement)
            connection.execute("CREATE SCHEMA internal")
            connection.execute("CREATE TABLE internal.catalog AS SELECT ? AS fingerprint", [_fingerprint(statements)])
            connection.execute("USE memory")
            connection.execute("DETACH staged")
    except duckdb.Error as error:
        staged.unlink(missing_ok=True)
        if "No space left" in str(error):
            raise StoreFullError(
                f"Cannot rebuild {layout.catalog}: no space is left; free some, the next query rebuilds it."
            ) from error
        raise StoreError(f"Cannot rebuild {layout.catalog}: {str(error).splitlines()[0].rstrip('.')}.") from error
    os.replace(staged, layout.catalog)


def _fingerprint(statements: list[str]) -> str:
    return hashlib.sha256(json.dumps(statements).encode()).hexdigest()


@contextmanager
def _lock(layout: Layout) -> Iterator[None]:
    """One process rebuilds; the others wait for its result."""
    make_dirs(layout.tmp, sync=False)
    with (layout.root / "catalog.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
