"""What must hold on this machine before anything heavy starts. Light: nothing here imports torch.

Each check answers with a `Finding`: what was found and, where it failed, what to do about it.
"""

import importlib.metadata
import shutil
import sqlite3
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

from flywheel.config import Config
from flywheel.errors import FlywheelError
from flywheel.jobs.findings import Finding, judged
from flywheel.store.opening import open_store
from flywheel.store.query import query
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory

FREE_BYTES = 2 * 10**9
"""A demo of the embedded profile leaves about 0.3 GB behind; checkpoints being replaced need room twice."""
PATIENCE = 3.0
"""Seconds for a tracking server to answer."""


def machine_findings(config: Config) -> Iterator[Finding]:
    """Every check of this module, cheapest first."""
    yield versions(importlib.metadata.requires("flywheel") or ())
    yield disk_space(config.home_path)
    yield store_writable(config)
    yield tracking(config)


def versions(requirements: Iterable[str]) -> Finding:
    """Installed packages are in the ranges that flywheel was declared for."""
    name, wrong, seen = "versions", [], {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            seen[requirement.name] = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(seen[requirement.name], prereleases=True):
            wrong.append(f"{requirement.name} {seen[requirement.name]} is not {requirement.specifier}")
    if wrong:
        return Finding(name, False, "; ".join(wrong), "pip install -c constraints.txt -e . in the folder of flywheel.")
    shown = ", ".join(
        f"{package} {seen[package]}" for package in ("torch", "transformers", "dagster") if package in seen
    )
    return Finding(name, True, f"{len(seen)} packages in range ({shown})")


def disk_space(home: Path, wanted: int = FREE_BYTES) -> Finding:
    """There is room where everything is written."""
    free = shutil.disk_usage(_existing(home)).free
    mend = f"free at least {wanted / 1e9:.0f} GB, or write elsewhere with --set home=FOLDER."
    return judged("disk space", free >= wanted, f"{free / 1e9:.1f} GB free at {home}", mend)


def store_writable(config: Config) -> Finding:
    """Where the store is, a trajectory can be published, sealed, read back and queried; a store that is there opens."""
    name, home = "store", config.home_path
    mend = f"make {home} writable, or write elsewhere with --set home=FOLDER."
    try:
        if config.store_root.exists():
            open_store(config)
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="doctor-", dir=home) as scratch:
            found = _publish_and_read(TrajectoryStore(scratch, codec=config.store.codec, fsync=config.store.fsync))
    except (FlywheelError, OSError) as error:
        return Finding(name, False, str(error), mend)
    detail = "publishes, seals, reads and answers SQL" if found else "what was read is not what was published"
    return judged(name, found, detail, "look at the disk: bytes change on their way.")


def _publish_and_read(store: TrajectoryStore) -> bool:
    trajectory = random_trajectory("doctor")
    attempt = store.begin("doctor", trajectory.experiment)
    store.publish(trajectory, partition="doctor", attempt=attempt)
    store.seal("doctor", attempt, 1, trajectory.experiment)
    counted = query(store, "SELECT count(*) AS n FROM steps").to_pylist()[0]["n"]
    return store.read("doctor") == trajectory and counted == len(trajectory.turns)


def tracking(config: Config) -> Finding:
    """MLflow's back end can be reached; nothing is asked when tracking is off."""
    name, uri = "tracking", config.tracking_uri
    if not config.tracking.enabled:
        return Finding(name, True, "off (tracking.enabled)")
    mend = "correct tracking.uri, or switch it off with --set tracking.enabled=false."
    try:
        if uri.startswith("sqlite:///"):
            _open_sqlite(Path(uri.removeprefix("sqlite:///")))
        elif uri.startswith(("http://", "https://")):
            urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PATIENCE).close()
        else:
            return Finding(name, True, f"{uri}, not tried: only sqlite and http addresses are")
    except (sqlite3.Error, OSError, ValueError) as error:
        return Finding(name, False, f"{uri} cannot be used: {error}", mend)
    return Finding(name, True, uri)


def _open_sqlite(path: Path) -> None:
    """Takes the write lock of a database that is there; of one that is not, only its folder matters."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        return
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return path if path.exists() else _existing(path.parent)
