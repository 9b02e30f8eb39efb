"""A simulated desktop that says where it is shown; for servers in tests, so it imports little."""

import socket
import threading
import time
from typing import Any

from flywheel.envs.server.episodes.simulated import SimulatedEpisode
from flywheel.types import Observation

BANNER = b"RFB 003.008\n"


class ShownEpisode(SimulatedEpisode):
    """Greets like a VNC server, and then is silent; `why_not` among the options is what it says instead."""

    def __init__(self, machine: str, options: dict[str, Any]) -> None:
        self._why_not = options.pop("why_not", None)
        super().__init__(machine, options)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._greet, daemon=True).start()

    def view(self) -> int | str:
        return str(self._why_not) if self._why_not else int(self._listening.getsockname()[1])

    def _greet(self) -> None:
        while True:
            client, _ = self._listening.accept()
            client.sendall(BANNER)
            self._clients.append(client)


class SlowEpisode(ShownEpisode):
    """Looks at the screen for 1.5 seconds."""

    def observe(self) -> Observation:
        time.sleep(1.5)
        return super().observe()
