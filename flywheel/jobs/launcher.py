"""Runs heavy stages in processes of their own and hands back their results; knows nothing of any orchestrator.

    with Launcher() as launcher:
        result = launcher.run("sft", config, args, run_dir, on_progress=bar)

Stages are forked from a warm worker (see `worker.py`); with CUDA in sight, or off Linux, each gets a fresh interpreter.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from flywheel.config import Config
from flywheel.errors import FlywheelError, InfrastructureError, PartitionBusyError
from flywheel.jobs.base import STAGES, RunFolder
from flywheel.jobs.keeper import JOB_ENV, Ended, KeeperClient, signal_name

LAZY = ("requests",)
"""What stages import only when they need it and the worker had better have: qwen-vl-utils brings it, 0.2 s a job."""
LOG_LINES = 5
"""How many of the last log lines the sentence about a crash repeats."""
_FIRST_TO_FAIL = re.compile(r"^Root Cause .*?^  exitcode  : (-?\d+)", re.DOTALL | re.MULTILINE)
"""In torchrun's report on the processes that it started; itself it ends with 1."""
_OF_TORCHRUN = re.compile(r"^[WE]\d{4} [^\n]*/torch/distributed/elastic/", re.MULTILINE)
"""Where that report begins."""


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a stage is."""

    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True)
class Listener:
    """Who wants to hear from a running stage; called in the launching thread, about ten times a second."""

    progress: Callable[[Advance], None] | None = None
    log: Callable[[str], None] | None = None
    metrics: Callable[[dict[str, float]], None] | None = None


class Launcher:
    """Runs stages one after another or side by side; `close` (or leaving `with`) ends the worker and any job left.

    Args:
        warm: fork from a worker that has imported the stages already.
        stages: package of the stage modules.
        grace: seconds between SIGINT and SIGKILL when a stage is interrupted.
    """

    def __init__(self, *, warm: bool = True, stages: str = "flywheel.jobs", grace: float = 5.0) -> None:
        self._stages = stages
        self._grace = grace
        self._warm = warm and sys.platform == "linux"
        self._keeper = KeeperClient(self._modules() if self._warm else ())

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Safe to call twice."""
        self._keeper.close()

    def run(
        self,
        stage: str,
        config: Config,
        args: Mapping[str, Any],
        run_dir: Path,
        listener: Listener | None = None,
        *,
        env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The stage's result.

        Raises the stage's own `FlywheelError`, or one that quotes the end of its log when it crashed;
        `PartitionBusyError` when another process runs the same stage in the same folder.
        """
        folder = RunFolder(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        listener = listener or Listener()
        with _held(run_dir):
            folder.write_spec(config, args)
            (run_dir / "log.txt").unlink(missing_ok=True)
            ended = self._wait(stage, config, folder, listener, {**JOB_ENV, **os.environ, **(env or {})})
            return _outcome(stage, folder, ended)

    def _wait(self, stage: str, config: Config, folder: RunFolder, listener: Listener, env: Mapping[str, str]) -> Ended:
        name = stage if self._stages == "flywheel.jobs" else f"{self._stages}.{stage}"
        job = (name, str(folder.path.absolute()))
        processes = {"sft": config.sft.processes, "grpo": config.rl.processes}.get(stage, 0)
        argv = [sys.executable, "-m", *_together(processes), "flywheel.jobs", *job]
        kept = self._keeper.start(
            argv, job if may_fork(config) and not processes else None, env=env, log=folder.path.absolute() / "log.txt"
        )
        follower = _Follower(folder.path, listener)
        ended = kept.wait(follower.tick, grace=self._grace)
        follower.tick()
        return ended

    def _modules(self) -> list[str]:
        package = importlib.util.find_spec(self._stages)
        found = pkgutil.iter_modules(package.submodule_search_locations if package else [])
        return [
            "flywheel.jobs.base",
            *LAZY,
            *(f"{self._stages}.{module.name}" for module in found if module.name in STAGES),
        ]


def _together(processes: int) -> list[str]:
    """How so many processes of a stage are started; `accelerate launch` starts them the same way, on many machines."""
    return ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"] if processes else []


def may_fork(config: Config) -> bool:
    """CUDA does not survive a fork, and libraries may touch it while they are imported."""
    device = config.model.device
    return device == "cpu" or (device == "auto" and not Path("/dev/nvidiactl").exists())


class _Follower:
    """Passes on what a job appends to its folder."""

    def __init__(self, run_dir: Path, listener: Listener) -> None:
        self._run_dir = run_dir
        self._listener = listener
        self._offsets: dict[str, int] = {}
        self._progress = 0

    def tick(self) -> None:
        if self._listener.log is not None:
            for line in self._new_lines("log.txt"):
                self._listener.log(line)
        if self._listener.metrics is not None:
            for line in self._new_lines("metrics.jsonl"):
                self._listener.metrics(json.loads(line))
        if self._listener.progress is not None:
            self._report(self._listener.progress)

    def _report(self, listen: Callable[[Advance], None]) -> None:
        with contextlib.suppress(FileNotFoundError):
            stamp = (self._run_dir / "progress.json").stat().st_mtime_ns
            if stamp != self._progress:
                self._progress = stamp
                listen(Advance(**json.loads((self._run_dir / "progress.json").read_text())))

    def _new_lines(self, name: str) -> Iterator[str]:
        """Whole lines only; the rest waits for its newline."""
        path = self._run_dir / name
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offsets.get(name, 0))
            text, newline, _ = file.read().rpartition(b"\n")
        self._offsets[name] = self._offsets.get(name, 0) + len(text) + len(newline)
        if newline:
            yield from text.decode(errors="replace").split("\n")


@contextlib.contextmanager
def _held(run_dir: Path) -> Iterator[None]:
    """The folder for this process alone; the lock goes with the process, however it ends."""
    with (run_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise PartitionBusyError(
                f"Process {lock.read() or '?'} is running {run_dir.name} in {run_dir}; wait for it, or stop it first."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _outcome(stage: str, folder: RunFolder, ended: Ended) -> dict[str, Any]:
    if ended.survivors:
        raise InfrastructureError(f"{ended.survivors} processes of {stage} could not be ended; find them with `ps`.")
    result = folder.read_result()
    if ended.code == 0 and result is not None:
        return result
    error = folder.read_error()
    if ended.code > 0 and error is not None:
        raise error
    log = folder.path / "log.txt"
    said = log.read_text(errors="replace") if log.exists() else ""
    first = _FIRST_TO_FAIL.search(said)
    if first is None:
        raise FlywheelError(f"The {stage} job {_how(ended.code)}; {_end_of(log, said)}")
    own = _OF_TORCHRUN.split(said)[0]
    raise FlywheelError(f"A process of {stage} {_how(int(first[1]))}, which ended the others; {_end_of(log, own)}")


def _how(code: int) -> str:
    if code == -9:
        return "was killed (SIGKILL), by hand or because memory ran out"
    if code < 0:
        return f"died of {signal_name(code)}"
    return "ended without a result" if code == 0 else f"crashed with status {code}"


def _end_of(path: Path, said: str) -> str:
    lines = said.strip().splitlines()
    if not lines:
        return f"its log {path} is empty."
    return f"the end of its log {path}: " + " | ".join(line.strip() for line in lines[-LOG_LINES:])
