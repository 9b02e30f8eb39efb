"""The seam between whoever launches a heavy stage and the process that runs it.

A launcher writes `spec.json` into a run folder and starts `python -m flywheel.jobs.<stage> RUN_DIR` (or forks a warm
worker that calls the same `main`). The job leaves `result.json`, written last and atomically, and appends its
curves to `metrics.jsonl`, one JSON object a step. Under Dagster Pipes the same log lines and progress are also
sent to the orchestrator; a job knows nothing else about it.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, PipesContext, open_dagster_pipes

from flywheel import errors
from flywheel.config import Config
from flywheel.errors import FlywheelError
from flywheel.trainers.progress import Silent

STAGES = (
    *("base_model", "demonstrations", "rollouts", "sft_set", "sft", "grpo", "evaluate"),
    *("judge", "verify", "doctor"),
)
FAILED = 3
"""Exit status of a job that stopped with a `FlywheelError`; `error.json` then holds its class and sentence."""


class Progress(Protocol):
    """What a stage may say while it runs."""

    def log(self, message: str) -> None: ...

    def advance(self, done: int, total: int, unit: str) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...


@dataclass(slots=True)
class RunFolder:
    """One run's folder, as both sides see it."""

    path: Path

    def write_spec(self, config: Config, args: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        for name in ("result.json", "error.json", "metrics.jsonl", "progress.json"):
            (self.path / name).unlink(missing_ok=True)
        (self.path / "spec.json").write_text(json.dumps({"config": config.model_dump(), "args": args}, indent=2))

    def read_spec(self) -> tuple[Config, dict[str, Any]]:
        spec = json.loads((self.path / "spec.json").read_text())
        return Config.model_validate(spec["config"]), spec["args"]

    def write_result(self, result: Mapping[str, Any]) -> None:
        staged = self.path / "result.json.tmp"
        staged.write_text(json.dumps(result, indent=2))
        staged.replace(self.path / "result.json")

    def read_result(self) -> dict[str, Any] | None:
        """What the finished job returned; None while there is no result."""
        file = self.path / "result.json"
        return json.loads(file.read_text()) if file.exists() else None

    def write_error(self, error: FlywheelError) -> None:
        (self.path / "error.json").write_text(json.dumps({"kind": type(error).__name__, "message": str(error)}))

    def read_error(self) -> FlywheelError | None:
        """The error that the job stopped with, in its own class; None when it stopped for another reason."""
        file = self.path / "error.json"
        if not file.exists():
            return None
        stored = json.loads(file.read_text())
        kind: type[FlywheelError] = getattr(errors, stored["kind"], FlywheelError)
        return kind(stored["message"])


class FolderProgress:
    """Progress into the run folder, and through Pipes where there is an orchestrator."""

    def __init__(self, folder: RunFolder, pipes: PipesContext | None = None) -> None:
        self._folder = folder
        self._pipes = pipes
        self._last = 0.0

    def log(self, message: str) -> None:
        if self._pipes is not None:
            self._pipes.log.info(message)
        print(message, flush=True)

    def advance(self, done: int, total: int, unit: str) -> None:
        """At most ten times a second: the file is for a progress bar."""
        now = time.monotonic()
        if now - self._last > 0.1 or done == total:
            self._last = now
            staged = self._folder.path / "progress.json.tmp"
            staged.write_text(json.dumps({"done": done, "total": total, "unit": unit}))
            staged.replace(self._folder.path / "progress.json")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        with (self._folder.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


class Quiet(Silent):
    """Progress of the other processes of a stage: the first speaks for all."""

    def log(self, message: str) -> None:
        """Nothing."""


Stage = Callable[[Config, dict[str, Any], Progress], Mapping[str, Any]]


def load_stage(name: str) -> Stage:
    """`run` of `flywheel.jobs.<name>`, or of the module that a dotted name spells out."""
    run: Stage = importlib.import_module(name if "." in name else f"flywheel.jobs.{name}").run
    return run


def is_first() -> bool:
    """Whether this process speaks for its stage; torchrun and accelerate start several, with a rank each."""
    return os.environ.get("RANK", "0") == "0"


def main(stage: str, run_dir: str) -> int:
    """Run one stage in this process; the exit status."""
    folder = RunFolder(Path(run_dir))
    config, args = folder.read_spec()
    first = is_first()
    piped = first and DAGSTER_PIPES_CONTEXT_ENV_VAR in os.environ
    with open_dagster_pipes() if piped else nullcontext() as pipes:
        try:
            result = load_stage(stage)(config, args, FolderProgress(folder, pipes) if first else Quiet())
            if first:
                folder.write_result(result)
        except FlywheelError as error:
            folder.write_error(error)
            print(f"{stage}: {error}", file=sys.stderr, flush=True)
            return FAILED
    return 0
