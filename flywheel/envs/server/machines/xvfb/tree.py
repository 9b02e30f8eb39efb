"""One booted sandbox: everything it takes from the host, and how to give it back.

Start and destroy it from one thread that outlives it: the kernel's parent-death signal, which ends the sandbox with its
worker, is sent when the starting *thread* ends.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from flywheel.envs.server.machines.xvfb import cgroups
from flywheel.envs.server.machines.xvfb.control import Control, one_line
from flywheel.envs.server.machines.xvfb.files import write_etc, write_home
from flywheel.envs.server.machines.xvfb.options import MIB, XvfbOptions
from flywheel.envs.server.machines.xvfb.sandbox import Box, Sources, venv_of
from flywheel.envs.server.machines.xvfb.session import Session
from flywheel.envs.server.machines.xvfb.shims import write_shims
from flywheel.envs.server.machines.xvfb.syscalls import seccomp_filter
from flywheel.envs.server.machines.xvfb.uids import Uid, can_claim, claim_uid, processes_of
from flywheel.errors import InfrastructureError
from flywheel.processes import readable

ALLOW = (
    "user namespaces must be allowed: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or for a container "
    "--cap-add SYS_ADMIN --security-opt seccomp=unconfined"
)


class Tree:
    """Boots in its making; raises `InfrastructureError`, having left nothing."""

    def __init__(self, options: XvfbOptions) -> None:
        self.options = options
        self._end: str | None = None
        with ExitStack() as stack:
            try:
                session = Session.claim(options.run_root)
            except OSError as error:
                raise InfrastructureError(
                    f"{options.run_root} cannot be written ({error.strerror}); set FLYWHEEL_DESKTOPS to another folder."
                ) from error
            stack.callback(session.remove)
            self.name = session.id
            uid = self._claim_uid(stack)
            self.uid = uid.number if uid else None
            self.limits = self._limit(session, stack)
            _fill(session)
            self._spawn(session, uid, stack)
            self._await_ready()
            self._stack = stack.pop_all()

    def _claim_uid(self, stack: ExitStack) -> Uid | None:
        if not can_claim():
            return None
        uid = claim_uid()
        stack.callback(uid.release)
        stack.callback(_wait_empty, uid)
        return uid

    def _limit(self, session: Session, stack: ExitStack) -> cgroups.Limits:
        planned = cgroups.plan(session.id)
        session.remember(planned)
        limits = cgroups.create(planned, self.options.memory_bytes, self.options.pids)
        stack.callback(limits.remove)
        return limits

    def _spawn(self, session: Session, uid: Uid | None, stack: ExitStack) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = Control(ours)
        stack.callback(self.control.close)
        sources = Sources(session.folder, self.options.guest, venv_of(self.options.guest_python))
        box = Box(self.options, sources, session.id, uid.number if uid else None)
        info, info_in = os.pipe()
        arguments = _readable(box.arguments())
        program = seccomp_filter()
        filter_fd = None if program is None else _readable(program)
        read = [fd for fd in (arguments, filter_fd) if fd is not None]
        words = box.command(self.limits.joins, info_in, arguments, filter_fd, self._boot(session, theirs.fileno()))
        try:
            # The environment of the sandbox's first process can be read inside, so it holds nothing of the worker's.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                pass_fds=(info_in, *read, theirs.fileno()),
                cwd="/",
                start_new_session=True,
            )
        finally:
            theirs.close()
            for fd in (info_in, *read):
                os.close(fd)
        self._init = -1
        stack.callback(self._kill)
        with os.fdopen(info, "rb") as file:
            said = file.read()
        if not said:
            raise InfrastructureError(f"the desktop did not boot: {self._why()}.")
        self._init = os.pidfd_open(json.loads(said)["child-pid"])

    def _boot(self, session: Session, control_fd: int) -> str:
        options = self.options
        given = {
            "name": session.id,
            "control": control_fd,
            "screen": "{}x{}".format(*options.screen),
            "pids": options.pids,
            # For memory files, which belong to no tmpfs; a little more, so that a full disk is said to be full.
            "file_bytes": options.tmpfs_bytes + MIB,
            "data_bytes": 0 if self.limits.memory else options.memory_bytes,
            "seconds": options.boot_seconds,
        }
        return json.dumps(given)

    def _await_ready(self) -> None:
        try:
            message = self.control.event(self.options.boot_seconds)
        except TimeoutError as error:
            raise InfrastructureError(f"the desktop did not boot in {self.options.boot_seconds:g} s.") from error
        if message is None or message.get("event") != "ready":
            why = one_line(message.get("why")) if message else self._why()
            raise InfrastructureError(f"the desktop did not boot: {why}.")

    def ended(self) -> str | None:
        """Why it is no longer running; None while it runs."""
        if self._end is None and self._process.poll() is not None:
            self._end = f"the desktop has ended: {self._why()}"
        return self._end

    def _why(self) -> str:
        """What the sandbox itself said last, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        message: dict[str, object] | None = None
        with contextlib.suppress(OSError):
            message = self.control.event(0.01)
        if message and message.get("event") == "failed":
            return one_line(message.get("why"))
        stderr = self._process.stderr
        said = ""
        if stderr is not None and readable(stderr.fileno(), 0):
            said = one_line(os.read(stderr.fileno(), 4096).decode(errors="replace"))
        hint = f"; {ALLOW}" if any(word in said for word in ("unshare", "namespace", "uid_map", "uid map")) else ""
        return f"{said or f'status {self._process.returncode}'}{hint}"

    def destroy(self) -> None:
        """Give everything back; returns when the last process is gone. Safe to call twice."""
        self._stack.close()

    def _kill(self) -> None:
        """Its first process takes all others with it; it can be waited for, however it ends."""
        if self._init >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            readable(self._init, 10)
            os.close(self._init)
            self._init = -1
            # The outer process reaps the first one and ends; killed before that, it would leave a zombie to init.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _readable(data: bytes) -> int:
    """A descriptor that gives these bytes and ends; about 10 KiB of arguments fit a pipe's 64."""
    descriptor, written = os.pipe()
    os.write(written, data)
    os.close(written)
    return descriptor


def _fill(session: Session) -> None:
    """What the sandbox mounts from the session folder; readable by the desktop's uid, writable by nobody in it."""
    for name in ("etc", "bin", "home"):
        (session.folder / name).mkdir()
    write_etc(session.folder / "etc")
    write_shims(session.folder / "bin")
    write_home(session.folder / "home")
    shutil.copyfile(Path(__file__).with_name("boot.py"), session.folder / "boot.py")


def _wait_empty(uid: Uid, seconds: float = 5.0) -> None:
    """The end of a pid namespace is not the end of everything its user ran; kill what is left and wait."""
    deadline = time.monotonic() + seconds
    only = range(uid.number, uid.number + 1)
    while (left := processes_of(only).get(uid.number)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
