"""The keeper of heavy jobs: starts each in a process group of its own and lets none outlive its launcher.

    launcher ── socket ──> keeper ── fork ──> job (leads a session) ──> whatever the job starts

Importing torch, transformers and datasets takes about 5 s of CPU a process. A warm keeper imports them once, while
the launcher is busy with its own start-up, and then forks: a job starts in some 20 ms. It never runs a model, so no
thread pool and no CUDA context exists when it forks. A cold keeper starts a fresh interpreter for each job, which
is what CUDA and platforms without a dependable fork need.

Each job holds a lease: a socket whose other end the launcher keeps. `stop` on it means SIGINT, a grace, then SIGKILL to
the whole family; its end (the launcher died, or gave up waiting) means SIGKILL at once. When the launcher's own socket
ends, everything does.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from flywheel.processes import adopt_orphans, children, die_with_parent, end_family, family, send

MESSAGE_BYTES = 1 << 17
"""Largest request. Linux lets one environment string be this long; a socket buffer holds it by default."""


@dataclass(slots=True)
class _Job:
    pid: int
    lease: socket.socket
    deadline: float = float("inf")


class Keeper:
    """Serves launch requests until the launcher's socket ends.

    A request is `{argv, job, env, cwd, log}`. A warm keeper runs `job` (stage and run folder) in its fork; a cold one,
    or one given no `job`, lets the fork become `argv`. `log` takes both output streams; None leaves them as they are.
    """

    def __init__(self, channel: socket.socket, warm: bool) -> None:
        self._channel = channel
        self._warm = warm
        self._jobs: dict[int, _Job] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, wake_end = socket.socketpair()
        for end in (self._wake, wake_end):
            end.setblocking(False)
        self._wake_end = wake_end

    def serve(self) -> dict[str, Any] | None:
        """None when the launcher is gone; in a forked child, the request that the child is to carry out."""
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(0.05 if self._stopping else None):
                if key.fileobj is self._channel:
                    request, lease = self._receive()
                    if lease is None:
                        self._end_all()
                        return None
                    if self._launch(request, lease):
                        return request
                elif key.fileobj is self._wake:
                    with contextlib.suppress(BlockingIOError):
                        self._wake.recv(4096)
                else:
                    self._obey(key.data)
            self._reap()
            self._kill_overdue()

    @property
    def _stopping(self) -> bool:
        return any(job.deadline < float("inf") for job in self._jobs.values())

    def _receive(self) -> tuple[dict[str, Any], socket.socket | None]:
        data, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 1)
        if not data:
            return {}, None
        return json.loads(data), socket.socket(fileno=fds[0])

    def _launch(self, request: dict[str, Any], lease: socket.socket) -> bool:
        """True in the child."""
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_job(request, lease, keeper)
            if not (self._warm and request["job"]):
                os.execve(sys.executable, request["argv"], request["env"])
            return True
        self._jobs[pid] = _Job(pid, lease)
        self._selector.register(lease, selectors.EVENT_READ, self._jobs[pid])
        with contextlib.suppress(BrokenPipeError):
            lease.send(f"pid {pid}".encode())
        return False

    def _become_job(self, request: dict[str, Any], lease: socket.socket, keeper: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for held in (self._channel, self._wake, self._wake_end, lease, *(job.lease for job in self._jobs.values())):
            held.close()
        os.setsid()
        die_with_parent()
        if os.getppid() != keeper:
            os._exit(1)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        if request["log"]:
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def _obey(self, job: _Job) -> None:
        """`stop SECONDS`, or the end of the lease."""
        try:
            order = job.lease.recv(64)
        except ConnectionResetError:
            order = b""
        if order:
            send(family(job.pid) or {job.pid}, signal.SIGINT)
            job.deadline = time.monotonic() + float(order.split()[1])
        else:
            self._selector.unregister(job.lease)
            job.deadline = 0.0

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self._jobs.pop(pid, None)
            if job is not None:
                self._close(job, os.waitstatus_to_exitcode(status))

    def _close(self, job: _Job, exit_code: int) -> None:
        """Nothing that the job started stays behind, however it ended."""
        left = end_family(job.pid)
        if not self._jobs:
            for orphan in children(os.getpid()):
                left |= end_family(orphan)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(job.lease)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            job.lease.send(f"exit {exit_code} {len(left)}".encode())
        job.lease.close()

    def _kill_overdue(self) -> None:
        for job in self._jobs.values():
            if job.deadline <= time.monotonic():
                job.deadline = float("inf")
                end_family(job.pid)

    def _end_all(self) -> None:
        for job in self._jobs.values():
            end_family(job.pid)
        for orphan in children(os.getpid()):
            end_family(orphan)


def _ignore(number: int, frame: FrameType | None) -> None:
    """SIGCHLD needs a handler, or the wake-up socket stays silent."""


def warm_up(modules: Sequence[str]) -> None:
    """Import what jobs need. What cannot be imported is left for the job, which then says why in its own log.

    OpenBLAS starts its threads while numpy is imported unless told otherwise; a process that forks must have none.
    """
    limits = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    before = dict(os.environ)
    os.environ.update(limits)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    os.environ.clear()
    os.environ.update(before)
    gc.collect()
    gc.freeze()


def main() -> None:
    """`python -m flywheel.jobs.worker FD [MODULE...]`; with modules, warm."""
    forked = _Forked()
    # Registered before anything else is imported, so that it comes last, when executors and child processes are done.
    atexit.register(forked.leave)
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    adopt_orphans()
    modules = sys.argv[2:]
    if modules:
        warm_up(modules)
    request = Keeper(channel, warm=bool(modules)).serve()
    if request is not None:
        from flywheel.jobs.base import main as run_job

        forked.status = 1
        forked.status = run_job(*request["job"])
        sys.exit(forked.status)


class _Forked:
    """A fork leaves without tearing down what its keeper imported: that takes 0.3 s, and native modules complain."""

    status: int | None = None

    def leave(self) -> None:
        if self.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)


if __name__ == "__main__":
    main()
