"""The worker's end of the control socket. What comes through it is the guest's word and is checked as such."""

import json
import os
import socket
import threading
import time
from typing import Any

from flywheel.errors import InfrastructureError

PACKET = 1 << 16


class Control:
    """One request at a time, from any thread. See `boot.py` for the messages."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._last = 0
        self._event: dict[str, Any] | None = None

    def close(self) -> None:
        with self._lock:
            self._channel.close()

    def event(self, seconds: float) -> dict[str, Any] | None:
        """The last unasked message, or the next; None when the sandbox ends without one. Raises `TimeoutError`."""
        with self._lock:
            if self._event is None:
                self._event, fds = self._receive(time.monotonic() + seconds)
                _close(fds)
            said, self._event = self._event, None
        return said

    def connect(self, port: int, seconds: float = 5.0) -> socket.socket:
        """The guest's own connection to its loopback port. Raises `OSError` or `InfrastructureError`."""
        reply, fds = self._ask({"do": "connect", "port": port}, seconds)
        if "error" in reply or len(fds) != 1:
            _close(fds)
            raise ConnectionRefusedError(f"nothing answers on port {port} of the desktop")
        try:
            made = socket.socket(fileno=fds[0])
        except OSError:
            _close(fds)
            raise
        if (made.family, made.type) != (socket.AF_INET, socket.SOCK_STREAM):
            made.close()
            raise InfrastructureError("the desktop handed over something that is no connection; revert it.")
        return made

    def ask(self, do: str, seconds: float, **arguments: Any) -> str | None:
        """The error in the answer, None when there is none. Raises `InfrastructureError` without an answer."""
        reply, fds = self._ask({"do": do, **arguments}, seconds)
        _close(fds)
        error = reply.get("error")
        return None if error is None else one_line(error)

    def _ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], list[int]]:
        deadline = time.monotonic() + seconds
        with self._lock:
            self._last += 1
            try:
                self._channel.settimeout(seconds)
                self._channel.send(json.dumps({"id": self._last, **request}).encode())
                while True:
                    message, fds = self._receive(deadline)
                    if message is None:
                        raise InfrastructureError("the desktop has ended; revert it.")
                    if message.get("id") == self._last:
                        return message, fds
                    _close(fds)
                    if "event" in message:  # otherwise it is the late answer to a request that was given up
                        self._event = message
            except TimeoutError as error:
                raise InfrastructureError(f"the desktop did not answer within {seconds:g} s; revert it.") from error
            except (OSError, ValueError) as error:
                raise InfrastructureError(f"the desktop cannot be spoken to ({error}); revert it.") from error

    def _receive(self, deadline: float) -> tuple[dict[str, Any] | None, list[int]]:
        self._channel.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, PACKET, 8, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None, []
        try:
            message = json.loads(data) if data else None
        except ValueError:
            message = {}
        return (message if isinstance(message, dict | None) else {}), list(fds)


def one_line(said: object) -> str:
    """What a stranger said, fit for a sentence: printable, on one line, at most 600 characters."""
    words = " ".join(str(said).split())
    return "".join(letter for letter in words if letter.isprintable())[:600]


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
