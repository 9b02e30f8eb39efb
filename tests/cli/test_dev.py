"""`flywheel dev` refuses what it cannot serve; that it serves is shown where the server is tested."""

import socket

from tests.cli.conftest import Flywheel


def test_a_port_in_use_is_one_sentence(flywheel: Flywheel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        assert flywheel("dev", "--port", str(port)).refusal.startswith(f"Port {port} on 127.0.0.1 is in use")
