"""Ephemeral TCP ports on the host's loopback, each joined to a fixed port of the guest.

The guest has a network of its own with nothing but a loopback. Its side of every connection is made in there and handed
out as a descriptor, so one thread here copies between two sockets that it both holds.
"""

import contextlib
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable

from flywheel.errors import InfrastructureError

CHUNK = 1 << 18
"""Bytes that may wait in one direction of one connection; a screenshot in a few reads."""

Connect = Callable[[int], socket.socket]


class _Link:
    """One direction: bytes read from `source` and not yet written to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.waiting = b""
        self.ended = False

    def read(self) -> None:
        try:
            self.waiting = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        self.ended = not self.waiting

    def write(self) -> None:
        """Raises `OSError` when the sink is gone."""
        with contextlib.suppress(BlockingIOError):
            while self.waiting:
                self.waiting = self.waiting[self.sink.send(self.waiting) :]
        if self.ended:
            self.sink.shutdown(socket.SHUT_WR)


class _Pair:
    """A client of the host and its connection in the guest."""

    def __init__(self, client: socket.socket, guest: socket.socket) -> None:
        self.links = (_Link(client, guest), _Link(guest, client))
        self.sockets = (client, guest)

    @property
    def over(self) -> bool:
        return all(link.ended and not link.waiting for link in self.links)

    def interests(self) -> dict[socket.socket, int]:
        """What to wait for on each side: a link reads only when it has nothing left to write."""
        wanted = dict.fromkeys(self.sockets, 0)
        for link in self.links:
            if link.waiting:
                wanted[link.sink] |= selectors.EVENT_WRITE
            elif not link.ended:
                wanted[link.source] |= selectors.EVENT_READ
        return wanted

    def move(self) -> None:
        """Copy what can be copied. Raises `OSError` when either side is gone."""
        for link in self.links:
            if not link.waiting and not link.ended:
                link.read()
                link.write()
            elif link.waiting:
                link.write()


class Pump:
    """Listens from its making until `close`; connections survive neither `cut` nor the guest."""

    def __init__(self, ports: tuple[int, ...], connect: Connect) -> None:
        self._connect = connect
        self._selector = selectors.DefaultSelector()
        self._listeners = {port: socket.create_server(("127.0.0.1", 0), backlog=64) for port in ports}
        for port, listener in self._listeners.items():
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, port)
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._pairs: set[_Pair] = set()
        self._closing = False
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name="desktop-pump", daemon=True)
        self._thread.start()

    def port(self, guest_port: int) -> int:
        """The host's port for one of the guest's."""
        return int(self._listeners[guest_port].getsockname()[1])

    def cut(self) -> None:
        """Drop every connection; returns when none is left."""
        self._idle.clear()
        os.write(self._woken, b"x")
        self._idle.wait(10)

    def close(self) -> None:
        """Stop listening and drop everything; safe to call twice."""
        if self._closing:
            return
        self._closing = True
        os.write(self._woken, b"x")
        self._thread.join(10)
        for listener in self._listeners.values():
            listener.close()
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake:
                    os.read(self._wake, 64)
                    for pair in list(self._pairs):
                        self._drop(pair)
                    self._idle.set()
                elif isinstance(key.data, _Pair):
                    self._serve(key.data)
                else:
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self, listener: socket.socket, port: int) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            guest = self._connect(port)
        except (OSError, InfrastructureError):
            # A reset, as from a port that nobody listens on; an orderly end would look like an empty answer.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(client, guest)
        for end in pair.sockets:
            end.setblocking(False)
            self._selector.register(end, selectors.EVENT_READ, pair)
        self._pairs.add(pair)

    def _serve(self, pair: _Pair) -> None:
        if pair not in self._pairs:  # dropped by an earlier event of the same round
            return
        try:
            pair.move()
        except OSError:
            self._drop(pair)
            return
        if pair.over:
            self._drop(pair)
            return
        for end, events in pair.interests().items():
            self._watch(end, events, pair)

    def _watch(self, end: socket.socket, events: int, pair: _Pair) -> None:
        known = self._selector.get_map().get(end)
        if known is None and events:
            self._selector.register(end, events, pair)
        elif known is not None and not events:
            self._selector.unregister(end)
        elif known is not None and known.events != events:
            self._selector.modify(end, events, pair)

    def _drop(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
        for end in pair.sockets:
            if self._selector.get_map().get(end) is not None:
                self._selector.unregister(end)
            end.close()
