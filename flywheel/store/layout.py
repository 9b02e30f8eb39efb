"""Where everything lies.

root/FORMAT.json                                  which version of this layout
root/tmp/<uuid>                                   staging, on the same file system
root/live/<experiment>/<partition>/<attempt>/     <episode>.live
root/mirror/<experiment>/<partition>/<attempt>/   what SQL sees of live episodes; derived, may be deleted at any time
root/seg/<experiment>/<partition>/<attempt>/      episodes-<id>.parquet, steps-<id>.parquet, blobs-<id>.pack
root/heads/<experiment>/<partition>.json          what is sealed: the commit point
root/locks/<experiment>/<partition>.owner, .gate  flock files; what they hold is not data
root/catalog.duckdb, catalog.lock                 derived; may be deleted at any time
"""

import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from flywheel.errors import StoreError
from flywheel.store.disk import disk_errors, make_dirs, replace_file
from flywheel.store.schema import FORMAT_VERSION

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,127}")
_SUFFIX = ".live"
_NAME_BYTES = 240
"""Of an id as the name of a file; file systems take 255, and the suffix has its share."""
_FORMAT = {"format": "flywheel trajectory store", "version": FORMAT_VERSION}


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths under one root."""

    root: Path

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.duckdb"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def staging(self) -> Path:
        """A name that nobody else has."""
        return self.tmp / uuid.uuid4().hex

    def live(self, experiment: str, partition: str) -> Path:
        return self.root / "live" / experiment / partition

    def attempt(self, experiment: str, partition: str, attempt: int) -> Path:
        return self.live(experiment, partition) / str(attempt)

    def episode(self, experiment: str, partition: str, attempt: int, episode_id: str) -> Path:
        return self.attempt(experiment, partition, attempt) / file_name(episode_id)

    def mirror(self, experiment: str, partition: str, attempt: int) -> Path:
        return self.root / "mirror" / experiment / partition / str(attempt)

    def segments(self, experiment: str, partition: str, attempt: int) -> Path:
        return self.root / "seg" / experiment / partition / str(attempt)

    def head(self, experiment: str, partition: str) -> Path:
        return self.root / "heads" / experiment / f"{partition}.json"

    def lock(self, experiment: str, partition: str, kind: str) -> Path:
        return self.root / "locks" / experiment / f"{partition}.{kind}"

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def attempts(self, experiment: str, partition: str) -> list[int]:
        """Ordinals that have live episodes or were begun, ascending."""
        return ordinals(self.live(experiment, partition))

    def experiments(self) -> list[str]:
        return sorted(_children(self.root / "live") | _children(self.root / "heads"))

    def partitions(self, experiment: str) -> list[str]:
        """Names that have a head or live episodes."""
        heads = {path.stem for path in (self.root / "heads" / experiment).glob("*.json")}
        return sorted(heads | _children(self.root / "live" / experiment))

    def create(self, sync: bool) -> None:
        """Make the root, or check that this version made it. Raises `StoreError`."""
        file = self.root / "FORMAT.json"
        with disk_errors("open the trajectory store", self.root):
            if not file.exists():
                make_dirs(self.tmp, sync)
                replace_file(file, json.dumps(_FORMAT).encode(), self.staging(), sync)
                return
            text = file.read_text()
        try:
            found = json.loads(text)["version"]
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{file} is damaged, so {self.root} cannot be read as a trajectory store.") from None
        if found != FORMAT_VERSION:
            raise StoreError(
                f"The trajectory store {self.root} has format {found} and this flywheel reads format {FORMAT_VERSION}; "
                "use the version of flywheel that wrote it, or another folder."
            )


def check_name(kind: str, name: str) -> None:
    """Experiments and partitions are path segments. Raises `StoreError`."""
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"The {kind} '{name}' cannot be a folder name; use letters, digits and . _ = + -, "
            "and begin with one of the first two."
        )


def check_attempt(attempt: int) -> None:
    """Attempts count from 1. Raises `StoreError`."""
    if attempt < 1:
        raise StoreError(f"Attempt {attempt} does not exist; attempts count from 1.")


def file_name(episode_id: str) -> str:
    """Any id as the name of a file; `episode_name` is its inverse. Raises `StoreError`."""
    name = quote(episode_id, safe="=+@,:")
    if episode_id == "" or len(name) > _NAME_BYTES:
        raise StoreError(
            f"The trajectory id '{episode_id[:60]}' has {len(episode_id)} characters; "
            "use 1 to 240 letters, digits, - and _."
        )
    return ("%2E" + name[1:] if name.startswith(".") else name) + _SUFFIX


def episode_name(path: Path) -> str:
    """The id of the episode in this file."""
    return unquote(path.name.removesuffix(_SUFFIX))


def ordinals(folder: Path) -> list[int]:
    """Subfolders that are attempts, ascending."""
    return sorted(int(name) for name in _children(folder) if name.isdigit())


def _children(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
