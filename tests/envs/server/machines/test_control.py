"""The worker's end of the control socket, against a guest that lies."""

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from flywheel.envs.server.machines.xvfb.control import Control
from flywheel.errors import InfrastructureError

Answer = Callable[[socket.socket, bytes], None]


@pytest.fixture
def ends() -> Iterator[tuple[Control, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control = Control(ours)
    yield control, theirs
    control.close()
    theirs.close()


def answering(guest: socket.socket, answer: Answer) -> None:
    threading.Thread(target=lambda: answer(guest, guest.recv(65536)), daemon=True).start()


def test_late_answers_are_passed_over_and_their_descriptors_closed(ends: tuple[Control, socket.socket]) -> None:
    control, guest = ends

    def answer(guest: socket.socket, _: bytes) -> None:
        for message in (b'{"id": 0}', b"nonsense", b"[1]", b'{"id": 77, "error": "no"}'):
            socket.send_fds(guest, [message], [0, 0])
        guest.send(b'{"id": 1, "error": "two\\nlines \\u001b[31mred"}')

    before = len(os.listdir("/proc/self/fd"))
    answering(guest, answer)
    assert control.ask("check", 5) == "two lines [31mred"
    assert len(os.listdir("/proc/self/fd")) == before


def test_silence_and_an_end_are_errors_in_time(ends: tuple[Control, socket.socket]) -> None:
    control, guest = ends
    with pytest.raises(InfrastructureError, match=r"did not answer within 0\.05 s"):
        control.ask("check", 0.05)
    guest.close()
    with pytest.raises(InfrastructureError, match="revert it"):
        control.ask("check", 5)


def test_only_a_tcp_connection_is_taken_for_one(ends: tuple[Control, socket.socket]) -> None:
    control, guest = ends
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as wrong:
        answering(guest, lambda guest, _: socket.send_fds(guest, [b'{"id": 1}'], [wrong.fileno()]))
        with pytest.raises(InfrastructureError, match="no connection"):
            control.connect(5000)
        answering(guest, lambda guest, _: socket.send_fds(guest, [b'{"id": 2}'], [0]))
        with pytest.raises((OSError, InfrastructureError)):
            control.connect(5000)
        answering(guest, lambda guest, _: socket.send_fds(guest, [b'{"id": 3}'], [wrong.fileno()] * 3))
        with pytest.raises(ConnectionRefusedError):
            control.connect(5000)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_last_words_are_kept_while_something_else_is_asked(ends: tuple[Control, socket.socket]) -> None:
    control, guest = ends

    def answer(guest: socket.socket, _: bytes) -> None:
        guest.send(b'{"event": "failed", "why": "Xvfb has ended"}')
        guest.send(b'{"id": 1}')

    answering(guest, answer)
    assert control.ask("check", 5) is None
    assert control.event(1) == {"event": "failed", "why": "Xvfb has ended"}
