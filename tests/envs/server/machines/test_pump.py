"""Bytes between the host's loopback and the guest's, without a guest."""

import socket
import threading
from collections.abc import Iterator

import pytest

from flywheel.envs.server.machines.xvfb.pump import Pump


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets, and ends when its client does."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=copy, args=(client,), daemon=True).start()

    def copy(client: socket.socket) -> None:
        with client:
            while data := client.recv(65536):
                client.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.fixture
def pump(echo: int) -> Iterator[Pump]:
    def connect(port: int) -> socket.socket:
        if port != 5000:
            raise ConnectionRefusedError
        return socket.create_connection(("127.0.0.1", echo))

    made = Pump((5000, 9222), connect)
    yield made
    made.close()


def first_byte(port: int) -> bytes:
    """A reset may arrive while still connecting, or afterwards."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        return client.recv(1)


def test_eight_megabytes_both_ways_and_an_orderly_end(pump: Pump) -> None:
    data = bytes(range(256)) * (8 << 12)
    with socket.create_connection(("127.0.0.1", pump.port(5000)), timeout=10) as client:

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        threading.Thread(target=send, daemon=True).start()
        assert b"".join(iter(lambda: client.recv(1 << 16), b"")) == data


def test_sixteen_clients_at_once_do_not_mix(pump: Pump) -> None:
    clients = [socket.create_connection(("127.0.0.1", pump.port(5000)), timeout=10) for _ in range(16)]
    for number, client in enumerate(clients):
        client.sendall(b"%d." % number)
    assert [client.recv(16) for client in clients] == [b"%d." % number for number in range(16)]
    for client in clients:
        client.close()


def test_a_refused_connection_is_a_reset(pump: Pump) -> None:
    with pytest.raises(ConnectionResetError):
        first_byte(pump.port(9222))


def test_cut_drops_what_is_open_and_new_clients_are_served(pump: Pump) -> None:
    with socket.create_connection(("127.0.0.1", pump.port(5000)), timeout=5) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        pump.cut()
        assert client.recv(1) == b""
    with socket.create_connection(("127.0.0.1", pump.port(5000)), timeout=5) as client:
        client.sendall(b"y")
        assert client.recv(1) == b"y"


def test_close_twice_frees_the_ports_and_the_thread(pump: Pump) -> None:
    port = pump.port(5000)
    pump.close()
    pump.close()
    assert "desktop-pump" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
