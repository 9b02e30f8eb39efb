"""A client of qemu-guest-agent, where a guest runs it: reads files without touching its keyboard.

Source: https://www.qemu.org/docs/master/interop/qemu-ga-ref.html. In Windows it comes with the virtio drivers.
"""

import base64
import itertools
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any

from flywheel.envs.server.machines.qemu.qmp import Lines, QmpError

_CHUNK = 1 << 20


class GuestAgent:
    """Owns `connection`, whose other end is QEMU's; the agent behind it may come and go with the guest."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = Lines(connection, "The guest agent")
        self._ids = itertools.count(secrets.randbits(30))

    def execute(self, command: str, arguments: Mapping[str, Any] | None = None, timeout: float = 10.0) -> Any:
        """Raises `QmpError` when the agent refuses, `InfrastructureError` when nobody answers."""
        self._synchronise(timeout)
        self._lines.send({"execute": command, "arguments": dict(arguments or {})})
        message = self._lines.receive(time.monotonic() + timeout)
        if "error" in message:
            raise QmpError(f"The guest agent refused {command}: {message['error'].get('desc', 'no reason given')}")
        return message["return"]

    def read(self, path: str, limit: int) -> bytes | None:
        """A file's bytes, `limit` at most, or None when it cannot be read. The guest follows its own links."""
        try:
            handle = self.execute("guest-file-open", {"path": path, "mode": "rb"})
        except QmpError:
            return None
        data = b""
        try:
            while len(data) < limit:
                part = self.execute("guest-file-read", {"handle": handle, "count": min(_CHUNK, limit - len(data))})
                data += base64.b64decode(part["buf-b64"])
                if part["eof"]:
                    break
        except QmpError:  # a folder can be opened
            return None
        finally:
            self.execute("guest-file-close", {"handle": handle})
        return data

    def close(self) -> None:
        self._lines.close()

    def _synchronise(self, timeout: float) -> None:
        """Skips answers to commands that were given up, some perhaps from before a revert."""
        number = next(self._ids)
        self._lines.send({"execute": "guest-sync", "arguments": {"id": number}})
        deadline = time.monotonic() + timeout
        while self._lines.receive(deadline).get("return") != number:
            pass
