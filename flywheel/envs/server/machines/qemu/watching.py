"""QEMU's screen for people who only watch.

QEMU's VNC server always takes input. So pages connect here, and what they say is read message by message: requests for
pictures go on to QEMU, keys, pointer and clipboard do not. A message that is not known ends the connection, because
nobody knows where the next one begins. Messages are those of RFC 6143; 255 is QEMU's own.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from flywheel.errors import InfrastructureError

VERSIONS = (b"RFB 003.007\n", b"RFB 003.008\n")
NO_PASSWORD, SHARED = b"\x01", b"\x01"
MOST_CLIPBOARD = 1 << 20
CHUNK = 1 << 16

Connect = Callable[[], socket.socket]
Read = Callable[[int], bytes]
"""Exactly so many bytes; raises `EOFError`."""


def passed_on(read: Read) -> Iterator[bytes]:
    """Of all that a page says, what goes on to the screen server; ends when the connection has to."""
    version, security = read(12), b""
    if version not in VERSIONS:
        return
    yield version
    if (security := read(1)) != NO_PASSWORD:
        return
    yield security
    read(1)  # a page that asks to be alone would end the others
    yield SHARED
    while True:
        kind = read(1)
        match kind[0]:
            case 0:  # pixel format
                yield kind + read(19)
            case 2:  # encodings, each of four bytes
                head = read(3)
                yield kind + head + read(4 * int.from_bytes(head[1:], "big"))
            case 3:  # a picture, please
                yield kind + read(9)
            case 4:  # key
                read(7)
            case 5:  # pointer
                read(5)
            case 6:  # clipboard; a negative length is the extended form
                length = abs(int.from_bytes(read(7)[3:], "big", signed=True))
                if length > MOST_CLIPBOARD:
                    return
                read(length)
            case 255 if read(1) == b"\x00":  # key with its scan code
                read(10)
            case _:
                return


class Watching:
    """A port on loopback, from its making until `close`.

    Args:
        connect: gives a new connection to the screen server, one that asks for no password.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ends: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="watching", daemon=True).start()

    def close(self) -> None:
        """End the port and every connection; safe to call twice."""
        for end in (self._listener, *self._ends):
            _hang_up(end)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                page, _ = self._listener.accept()
                try:
                    server = self._connect()
                except InfrastructureError:
                    page.close()
                    continue
                for work in (self._speak, self._show):
                    threading.Thread(target=self._until_over, args=(work, page, server), daemon=True).start()

    def _until_over(
        self, work: Callable[[socket.socket, socket.socket], None], page: socket.socket, server: socket.socket
    ) -> None:
        """One direction; when it ends, so does the other."""
        self._ends |= {page, server}
        with contextlib.suppress(OSError, EOFError):
            work(page, server)
        for end in (page, server):
            _hang_up(end)
        self._ends -= {page, server}

    def _speak(self, page: socket.socket, server: socket.socket) -> None:
        with page.makefile("rb") as stream:
            for message in passed_on(lambda count: _exactly(stream.read(count), count)):
                server.sendall(message)

    def _show(self, page: socket.socket, server: socket.socket) -> None:
        while data := server.recv(CHUNK):
            page.sendall(data)


def _exactly(data: bytes, count: int) -> bytes:
    if len(data) != count:
        raise EOFError
    return data


def _hang_up(end: socket.socket) -> None:
    """Wakes whoever waits for it as well, which closing alone does not."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
