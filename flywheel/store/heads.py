"""The head of a partition: which sealed files it consists of. Replacing it is the commit point."""

import json
from dataclasses import asdict, dataclass

from flywheel.errors import StoreError
from flywheel.store.disk import disk_errors, replace_file
from flywheel.store.layout import Layout


@dataclass(frozen=True, slots=True)
class Segment:
    """Three files that belong together, relative to the root, and what they hold."""

    episodes_file: str
    steps_file: str
    blobs_file: str
    episodes: int
    steps: int
    bytes: int

    @property
    def files(self) -> tuple[str, str, str]:
        return self.episodes_file, self.steps_file, self.blobs_file


@dataclass(frozen=True, slots=True)
class Head:
    """What is sealed of one partition. `sealed_at` is seconds since the epoch."""

    experiment: str
    partition: str
    attempt: int
    sealed_at: float
    segments: tuple[Segment, ...]
    state: str = "sealed"

    @property
    def episodes(self) -> int:
        return sum(segment.episodes for segment in self.segments)

    @property
    def steps(self) -> int:
        return sum(segment.steps for segment in self.segments)


def read_head(layout: Layout, experiment: str, partition: str) -> Head | None:
    """None while nothing is sealed. Raises `StoreError` when the file is damaged."""
    file = layout.head(experiment, partition)
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    try:
        values = json.loads(text)
        return Head(**values | {"segments": tuple(Segment(**segment) for segment in values["segments"])})
    except (ValueError, TypeError, KeyError):
        raise StoreError(f"The head {file} is damaged; roll partition '{partition}' out again to replace it.") from None


def write_head(layout: Layout, head: Head, sync: bool) -> None:
    """Commit."""
    data = json.dumps(asdict(head), indent=2).encode()
    with disk_errors(f"seal partition '{head.partition}'", layout.root):
        replace_file(layout.head(head.experiment, head.partition), data, layout.staging(), sync)
