"""Whoever looks at a desktop through VNC, over a web socket or a plain one."""

import socket
import struct
from typing import Protocol

from tests.envs.server.shown import BANNER


class Connection(Protocol):
    """What `Watched` needs of a connection."""

    def send(self, data: bytes, /) -> object: ...

    def recv(self, timeout: float | None = None) -> str | bytes: ...


class Plain:
    """A TCP connection to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def recv(self, timeout: float | None = None) -> bytes:
        self._socket.settimeout(timeout)
        return self._socket.recv(1 << 16)

    def close(self) -> None:
        self._socket.close()


class Watched:
    """The client's side of RFB 3.8, as far as looking needs it, and keys and pointer to see that they do nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._read = connection, b""
        assert self.take(12).startswith(b"RFB 003.")
        connection.send(BANNER)
        kinds = self.take(self.take(1)[0])
        assert 1 in kinds, "nothing but the address is asked for"
        connection.send(b"\x01")
        assert self.take(4) == bytes(4)
        connection.send(b"\x01")
        self.width, self.height = struct.unpack("!HH", self.take(4))
        self.bytes_a_pixel = self.take(16)[0] // 8
        self.name = self.take(struct.unpack("!I", self.take(4))[0]).decode()

    def take(self, count: int) -> bytes:
        while len(self._read) < count:
            got = self._connection.recv(10)
            assert isinstance(got, bytes)
            self._read += got
        taken, self._read = self._read[:count], self._read[count:]
        return taken

    def point(self, x: int, y: int) -> None:
        """Move the pointer there, and press a button."""
        for buttons in (0, 1, 0):
            self._connection.send(struct.pack("!BBHH", 5, buttons, x, y))

    def press(self, key: str) -> None:
        for down in (1, 0):
            self._connection.send(struct.pack("!BBHI", 4, down, 0, ord(key)))

    def look(self) -> int:
        """How many pixels came; their message comes after everything that was sent before has been dealt with."""
        self._connection.send(struct.pack("!BBHi", 2, 0, 1, 0))
        self._connection.send(struct.pack("!BBHHHH", 3, 0, 0, 0, self.width, self.height))
        kind, _, rectangles = struct.unpack("!BBH", self.take(4))
        assert kind == 0
        pixels = 0
        for _ in range(rectangles):
            _, _, width, height, encoding = struct.unpack("!HHHHi", self.take(12))
            assert encoding == 0
            self.take(width * height * self.bytes_a_pixel)
            pixels += width * height
        return pixels
