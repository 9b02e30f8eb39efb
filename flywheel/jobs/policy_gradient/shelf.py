"""Where a run of policy gradient publishes what it has played."""

import json
from pathlib import Path

from flywheel.config import Config
from flywheel.jobs.publishing import Publication, Publisher
from flywheel.store.opening import open_store
from flywheel.store.store import TrajectoryStore
from flywheel.types import Trajectory


class Shelf:
    """Publishes batches behind the trainer's back, and seals the partition in the end.

    The attempt is kept beside the trainer's states: a run that goes on from a state adds to what was published before.
    """

    def __init__(self, config: Config, partition: str, states: Path) -> None:
        self._store: TrajectoryStore = open_store(config)
        self._partition, self._experiment = partition, config.experiment
        note = states / "attempt.json"
        fresh = self._store.begin(partition, config.experiment)
        self.attempt = int(json.loads(note.read_text())) if note.exists() else fresh
        states.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(self.attempt))
        self.episodes = 0
        self._publisher = Publisher(self._store, Publication(partition, self.attempt))

    def __enter__(self) -> "Shelf":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
            self.episodes = self._store.seal(self._partition, self.attempt, None, self._experiment).episodes
        self._publisher.close()
        self._store.release(self._partition, self._experiment)

    def add(self, trajectories: list[Trajectory]) -> None:
        self._publisher.add(trajectories)

    def read(self, trajectory_id: str) -> Trajectory:
        """One that was added, as it was published."""
        self.flush()
        partition, experiment = self._partition, self._experiment
        return next(self._store.iter(partition, experiment=experiment, ids=[trajectory_id], attempt=self.attempt))

    def flush(self) -> None:
        """Wait until everything is published; raises what went wrong."""
        self._publisher.flush()
