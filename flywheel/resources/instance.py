"""The Dagster instance of a home folder: the same settings as the repository's `dagster.yaml`, with whole paths."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from sqlalchemy import event
from sqlalchemy.engine import Engine

from flywheel.config import Config


def settings(home: Path) -> dict[str, Any]:
    """Instance settings that keep everything under `home`; one run at a time, telemetry off."""
    base = {"base_dir": str(home / "dagster")}
    logs = {"base_dir": str(home / "dagster" / "logs")}
    return {
        "storage": {"sqlite": base},
        "local_artifact_storage": _plugin("dagster.core.storage.root", "LocalArtifactStorage", base),
        "compute_logs": _plugin("dagster.core.storage.local_compute_log_manager", "LocalComputeLogManager", logs),
        "concurrency": {"runs": {"max_concurrent_runs": 1}, "pools": {"granularity": "run"}},
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},
    }


def dagster_home(config: Config, *, name: str = "home", **changes: Any) -> Path:
    """A folder for DAGSTER_HOME, its `dagster.yaml` written anew. `changes` replace whole settings."""
    folder = config.home_path / "dagster" / name
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f"dagster.yaml.{os.getpid()}"
    staged.write_text(yaml.safe_dump({**settings(config.home_path), **changes}))
    staged.replace(folder / "dagster.yaml")
    return folder


def driver_instance(config: Config) -> dg.DagsterInstance:
    """The instance for runs inside this process; `make dev` shows them afterwards.

    It captures no compute logs: that would take the process's own output away and start four helpers a step. What jobs
    say is in the event log, and whole in `log.txt` of their run folders.
    """
    quiet = {"module": "dagster.core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
    return dg.DagsterInstance.from_config(str(dagster_home(config, name="driver", compute_logs=quiet)))


@contextmanager
def quick_sqlite() -> Iterator[None]:
    """Fewer waits for the disk while this process writes Dagster's (and MLflow's) SQLite files.

    Dagster opens and closes a connection for each event, some 1000 in a demo. Each commit flushes, and each close of
    the last connection checkpoints and flushes again: 17 ms together on a busy disk, 0.3 ms this way. With
    `synchronous=NORMAL` a write-ahead log survives a killed process whole, and a power cut without corruption, at worst
    without its last events; an idle connection kept to each file leaves checkpoints to SQLite's own count of pages.
    The log is switched on first, since each run has a file of its own, whose tables would else be made without it.
    """
    held: dict[str, sqlite3.Connection] = {}

    def connected(connection: Any, record: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            return
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        if path:
            if path not in held:
                held[path] = sqlite3.connect(path, check_same_thread=False)
            # A look each time: only a connection that has seen the log, which a new file does not have yet, keeps it.
            held[path].execute("PRAGMA schema_version").fetchone()

    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)
        for connection in held.values():
            connection.close()


def _plugin(module: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"module": module, "class": name, "config": config}
