"""The launcher's side of the keeper: start it, hand it a job, wait for the job, stop it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flywheel.errors import InfrastructureError
from flywheel.processes import end_family, readable

JOB_ENV = {
    "GOMP_SPINCOUNT": "10000",
    "TQDM_DISABLE": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
"""What jobs find in their environment unless it says otherwise. OpenMP threads that spin for long while they wait lose
a busy machine: beside one other process on 2 cores SFT ran at 2,100 tokens a second instead of 16,700. Not spinning at
all costs a third on a quiet one (14,700 against 23,600). Libraries' own progress bars would fill the log.
Packed rows differ in length; a GPU's memory in fixed pieces would be left full of holes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: its exit code (negative: minus the signal) and how many of its processes could not be ended."""

    code: int
    survivors: int = 0


class KeptJob:
    """A running job. Leaving `wait` by an exception, whatever it is, ends the job and all that it started."""

    def __init__(self, lease: socket.socket, keeper_log: Callable[[], str]) -> None:
        self._lease = lease
        self._keeper_log = keeper_log
        self.pid = int(self._message().split()[1])

    def wait(self, tick: Callable[[], None], every: float = 0.1, grace: float = 5.0) -> Ended:
        """Block until the job has ended, calling `tick` every so many seconds.

        Raises whatever interrupts the wait, e.g. `KeyboardInterrupt`, after SIGINT, `grace` seconds and SIGKILL.
        """
        try:
            while not readable(self._lease.fileno(), every):
                tick()
            return self._ended()
        except BaseException:
            self._stop(grace)
            raise
        finally:
            self._lease.close()

    def _stop(self, grace: float) -> None:
        """A second interrupt while waiting closes the lease, at which the keeper kills at once."""
        with contextlib.suppress(OSError):
            self._lease.send(f"stop {grace}".encode())
            self._lease.settimeout(grace + 10)
            self._ended()

    def _ended(self) -> Ended:
        _, code, survivors = self._message().split()
        return Ended(int(code), int(survivors))

    def _message(self) -> str:
        """Raises `InfrastructureError` when the keeper itself is gone; its job is then ended from here."""
        try:
            message = self._lease.recv(64).decode()
        except ConnectionResetError:
            message = ""
        if not message:
            if hasattr(self, "pid"):
                end_family(self.pid)
            detail = self._keeper_log()
            raise InfrastructureError(
                "The worker process that keeps jobs died, most often because memory ran out; free some and start again"
                + (f" (it said: {detail})." if detail else ".")
            )
        return message


class KeeperClient:
    """One keeper process, started at once and restarted when it was lost. Ends with `close`, or with this process."""

    def __init__(self, modules: Sequence[str] = (), *, quiet: bool = True) -> None:
        self._modules = tuple(modules)
        self._quiet = quiet
        self._start()

    def start(
        self,
        argv: Sequence[str],
        job: tuple[str, str] | None = None,
        *,
        env: Mapping[str, str],
        log: Path | None = None,
    ) -> KeptJob:
        """Start `argv`, or in a warm keeper the `job` (stage, run folder) that it stands for."""
        if self._process.poll() is not None:
            self.close()
            self._start()
        request = {"argv": list(argv), "job": job, "env": dict(env), "cwd": os.getcwd(), "log": log and str(log)}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [theirs.fileno()])
        return KeptJob(ours, self._last_words)

    def close(self) -> None:
        """End the keeper and every job it still keeps."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the keeper
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", "flywheel.jobs.worker", str(theirs.fileno()), *self._modules]
        with theirs:
            self._process = subprocess.Popen(
                argv,
                env={**JOB_ENV, **os.environ},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if self._quiet else None,
                stderr=self._log if self._quiet else None,
            )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def signal_name(code: int) -> str:
    """-9 -> `SIGKILL`."""
    return signal.Signals(-code).name
