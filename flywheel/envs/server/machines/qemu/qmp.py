"""A synchronous client of QEMU's machine protocol (QMP): one JSON object a line, over a connected unix socket.

Source: https://www.qemu.org/docs/master/interop/qmp-spec.html. The guest agent speaks the same lines, without greeting
and capabilities, over a socket of its own (`agent.py`).
"""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from flywheel.errors import InfrastructureError

_LONGEST_LINE = 64 * 1024 * 1024


class QmpError(InfrastructureError):
    """QEMU understood the command and refused it."""


class Lines:
    """JSON objects, one a line, over a socket; every wait has a deadline."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._connection = connection
        self._name = name
        self._buffer = b""

    def send(self, message: Mapping[str, Any], descriptor: int | None = None) -> None:
        """With a descriptor for the peer, the message has to be short: it is sent in one piece."""
        line = json.dumps(message).encode() + b"\n"
        try:
            self._connection.settimeout(10.0)
            if descriptor is None:
                self._connection.sendall(line)
            else:
                socket.send_fds(self._connection, [line], [descriptor])
        except OSError as error:
            raise InfrastructureError(f"{self._name} is gone ({error}); start the machine again.") from error

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next object; raises `InfrastructureError` when the peer closed, sent rubbish or is late."""
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise InfrastructureError(f"{self._name} did not answer in time; the machine hangs, start it again.")
            self._connection.settimeout(remaining)
            try:
                data = self._connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError as error:
                raise InfrastructureError(f"{self._name} is gone ({error}); start the machine again.") from error
            if not data:
                raise InfrastructureError(f"{self._name} closed the connection; start the machine again.")
            self._buffer += data
            if len(self._buffer) > _LONGEST_LINE:
                raise InfrastructureError(f"{self._name} sent a line of more than {_LONGEST_LINE} bytes.")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line.lstrip(b"\xff"))
        except ValueError as error:
            raise InfrastructureError(f"{self._name} sent a line that is not JSON: {line[:80]!r}") from error
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()


class Qmp:
    """Owns `connection`, a connected socket whose other end is QEMU's; the constructor waits for the greeting.

    Threads may share it: one command runs at a time.
    """

    def __init__(self, connection: socket.socket, timeout: float = 30.0) -> None:
        self._lines = Lines(connection, "QEMU's monitor")
        self._ids = itertools.count(1)
        self._turn = threading.Lock()
        self._lines.receive(time.monotonic() + timeout)
        self.execute("qmp_capabilities")

    def execute(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        descriptor: int | None = None,
    ) -> Any:
        """The command's return value. Raises `QmpError` when it is refused, `InfrastructureError` when QEMU is gone."""
        with self._turn:
            return self._exchange(command, arguments or {}, timeout, descriptor)

    def _exchange(self, command: str, arguments: Mapping[str, Any], timeout: float, descriptor: int | None) -> Any:
        number = next(self._ids)
        self._lines.send({"execute": command, "arguments": dict(arguments), "id": number}, descriptor)
        deadline = time.monotonic() + timeout
        while True:
            message = self._lines.receive(deadline)
            if message.get("id") != number:
                continue  # events, and answers to a command that was given up
            if "error" in message:
                raise QmpError(f"QEMU refused {command}: {message['error'].get('desc', 'no reason given')}")
            return message["return"]

    def vnc_client(self) -> socket.socket:
        """A new connection to QEMU's VNC server that is asked for no password."""
        ours, theirs = socket.socketpair()
        name = f"client{next(self._ids)}"
        try:
            self.execute("getfd", {"fdname": name}, descriptor=theirs.fileno())
            self.execute("add_client", {"protocol": "vnc", "fdname": name, "skipauth": True})
        except InfrastructureError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def human(self, line: str) -> str:
        """The answer of the monitor for people, which knows a few things that QMP does not."""
        return str(self.execute("human-monitor-command", {"command-line": line}))

    def job(self, command: str, arguments: Mapping[str, Any], timeout: float) -> None:
        """Runs a command that becomes a job, and waits for its end; raises `QmpError` when the job fails."""
        name = f"job{next(self._ids)}"
        self.execute(command, {"job-id": name, **arguments})
        deadline = time.monotonic() + timeout
        while True:
            found = [job for job in self.execute("query-jobs") if job["id"] == name]
            if not found or found[0]["status"] == "concluded":
                break
            if time.monotonic() > deadline:
                raise InfrastructureError(f"QEMU did not finish {command} in {timeout:.0f} s.")
            time.sleep(0.01)
        if found:
            self.execute("job-dismiss", {"id": name})
            if error := found[0].get("error"):
                raise QmpError(f"QEMU could not do {command}: {error}")

    def close(self) -> None:
        self._lines.close()
