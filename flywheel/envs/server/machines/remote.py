"""Somebody's running OSWorld guest, reached by host and ports. It cannot be reverted: what an episode does stays."""

import http.client
from collections.abc import Mapping
from typing import Any

from flywheel.envs.server.machines.base import Endpoints
from flywheel.errors import InfrastructureError

PORTS = {"server": 5000, "chromium": 9222, "vnc": 5900, "vlc": 8080}
SECONDS = 10.0


class RemoteMachine:
    """A `Machine` that others run: `start` only looks whether it answers, `stop` leaves it as it is.

    Args:
        options: `host` ("127.0.0.1" unless told otherwise) and the ports `server`, `chromium`, `vnc`, `vlc`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        ports = {name: int(options.get(name, port)) for name, port in PORTS.items()}
        self._endpoints = Endpoints(str(options.get("host", "127.0.0.1")), **ports)

    def start(self) -> None:
        if (ailment := self.health()) is not None:
            raise InfrastructureError(ailment)

    def endpoints(self) -> Endpoints:
        return self._endpoints

    def revert(self) -> None:
        """Nothing can be undone from here; only looks whether it still answers."""
        self.start()

    def stop(self) -> None:
        """Nothing: it is not ours."""

    def health(self) -> str | None:
        where = self._endpoints
        connection = http.client.HTTPConnection(where.host, where.server, timeout=SECONDS)
        try:
            connection.request("GET", "/platform")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return f"No OSWorld guest answers at {where.host}:{where.server} ({str(error) or type(error).__name__})."
        finally:
            connection.close()
        return None if status == 200 else f"{where.host}:{where.server} is no OSWorld guest (status {status})."
