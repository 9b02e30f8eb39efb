"""MLflow runs of heavy stages, written by a thread of their own.

Importing MLflow and opening its database takes about 3.5 s of CPU the first time (2 s of it the tables), 2 s later on;
a thread does it while the first stage runs. Metrics go out in batches of 1000, about 0.1 s each on SQLite. Tracking
that fails never stops a stage: the link in the metadata then says what went wrong.
"""

import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from flywheel.config import Config

BATCH = 1000
"""MLflow takes at most this many metrics a call, and 100 parameters."""
PARAMS = 100
FLUSH_SECONDS = 10.0


class Tracking:
    """Runs of one MLflow experiment."""

    def __init__(self, uri: str, experiment: str, artifacts: str) -> None:
        self.uri = uri
        self._experiment = experiment
        self._artifacts = artifacts
        self._thread = ThreadPoolExecutor(1, "tracking")
        self._connected: Future[tuple[Any, str]] = self._thread.submit(self._connect)

    @classmethod
    @contextmanager
    def of(cls, config: Config) -> Generator["Tracking | None", None, None]:
        """Tracking as configured; None when `tracking.enabled` is false. Leaving waits until all is written."""
        if not config.tracking.enabled:
            yield None
            return
        tracking = cls(config.tracking_uri, config.experiment, str(config.home_path / "mlflow-artifacts"))
        try:
            yield tracking
        finally:
            tracking.close()

    def start(self, name: str, config: Config, args: Mapping[str, Any]) -> "TrackedRun":
        """Open a run; returns at once."""
        params = {**_leaves(config.model_dump()), **_leaves(args, "args.")}
        return TrackedRun(self, name, params)

    def call(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Have the thread do `work(client, experiment_id, *args)`, after all that came before."""
        return self._thread.submit(lambda: work(*self._connected.result(), *args))

    def close(self) -> None:
        """Wait until everything is written."""
        self._thread.shutdown()

    def _connect(self) -> tuple[Any, str]:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        logging.getLogger("alembic").setLevel(logging.WARNING)
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        found = client.get_experiment_by_name(self._experiment)
        if found is not None:
            return client, found.experiment_id
        return client, client.create_experiment(self._experiment, artifact_location=self._artifacts)


class TrackedRun:
    """One stage's run: parameters at once, metrics in batches, the result's numbers at the end."""

    def __init__(self, tracking: Tracking, name: str, params: Mapping[str, str]) -> None:
        self._tracking = tracking
        self._rows: list[dict[str, float]] = []
        self._flushed = time.monotonic()
        self._created: Future[tuple[str, str]] = tracking.call(_create, name, params)

    def add(self, row: dict[str, float]) -> None:
        """One step's metrics, as the job wrote them."""
        self._rows.append(row)
        if sum(map(len, self._rows)) >= BATCH or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def finish(self, result: Mapping[str, Any]) -> str:
        """Write what is left in the background; a link or command that leads to the run, or what went wrong."""
        self.add({"step": 0, **_numbers(result)})
        self._end("FINISHED")
        error = self._created.exception()
        if error is not None:
            return f"Tracking at {self._tracking.uri} failed: {str(error).splitlines()[0]}"
        experiment, run = self._created.result()
        if self._tracking.uri.startswith("http"):
            return f"{self._tracking.uri}/#/experiments/{experiment}/runs/{run}"
        return f"run {run}: mlflow ui --backend-store-uri {self._tracking.uri}"

    def fail(self) -> None:
        """Close the run of a stage that failed or was cancelled."""
        self._end("FAILED")

    def _end(self, status: str) -> None:
        self._flush()
        self._tracking.call(_terminate, self._created, status)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self._flushed = time.monotonic()
        if rows:
            self._tracking.call(_log, self._created, rows, int(time.time() * 1000))


def _create(client: Any, experiment_id: str, name: str, params: Mapping[str, str]) -> tuple[str, str]:
    from mlflow.entities import Param

    run = client.create_run(experiment_id, run_name=name)
    entries = [Param(key, value) for key, value in params.items()]
    for start in range(0, len(entries), PARAMS):
        client.log_batch(run.info.run_id, params=entries[start : start + PARAMS])
    return experiment_id, run.info.run_id


def _log(
    client: Any, experiment_id: str, created: "Future[tuple[str, str]]", rows: list[dict[str, float]], now: int
) -> None:
    from mlflow.entities import Metric

    run = created.result()[1]
    metrics = [Metric(k, float(v), now, int(row["step"])) for row in rows for k, v in row.items() if k != "step"]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run, metrics=metrics[start : start + BATCH])


def _terminate(client: Any, experiment_id: str, created: "Future[tuple[str, str]]", status: str) -> None:
    client.set_terminated(created.result()[1], status)


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in result.items() if isinstance(value, int | float)}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted name -> text; MLflow refuses values above 6000 characters."""
    leaves: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(value, f"{prefix}{key}.")
        else:
            leaves[prefix + key] = str(value)[:6000]
    return leaves
