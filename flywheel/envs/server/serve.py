"""The env server as a process: binds, says where it listens, drains when it is told to end."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn

from flywheel.envs.server.app import AppOptions, build_app
from flywheel.envs.server.backends import BACKENDS
from flywheel.envs.server.desktop import WorkerSpec
from flywheel.envs.server.folders import reap_leftovers
from flywheel.envs.server.guard import check_exposed
from flywheel.envs.server.places import desktops_root
from flywheel.envs.server.supervisor import Supervisor
from flywheel.errors import ConfigError

TOKEN_VARIABLE = "FLYWHEEL_DESKTOPS_TOKEN"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, and how. `episode` replaces the backend's own; `machine` goes to episode and machine as they are.
    `drain` is how many seconds live leases may go on after SIGTERM."""

    backend: str = "simulated"
    episode: str | None = None
    desktops: int = 1
    host: str = "127.0.0.1"
    port: int = 8100
    token_variable: str = TOKEN_VARIABLE
    app: AppOptions = field(default_factory=AppOptions)
    machine: Mapping[str, Any] = field(default_factory=dict)
    drain: float = 300.0
    root: Path = field(default_factory=desktops_root)


def serve(options: ServeOptions, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM (drains first; a second one does not wait) or SIGINT (at once).

    Raises `ConfigError` before anything is started: no token off loopback, a port that is taken, a missing environment;
    and soon afterwards for options with which no desktop can start.
    """
    check_exposed(options.host, options.app.token, options.token_variable)
    backend = replace(BACKENDS[options.backend], episode=options.episode or BACKENDS[options.backend].episode)
    hidden = frozenset({options.token_variable})
    spec = WorkerSpec(backend, backend.python(), options.machine, hidden)
    listening = _bind(options.host, options.port)
    for name in reap_leftovers(options.root):
        announce(f"Cleaned up after the killed server {name}.")
    app = build_app(lambda: Supervisor(spec, options.desktops, options.root, options.backend, announce), options.app)
    # Idle connections are kept longer than clients keep theirs, so that none is closed while a request is on its way.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_keep_alive=65, timeout_graceful_shutdown=5
    )
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    words = "1 desktop" if options.desktops == 1 else f"{options.desktops} desktops"
    server = _Server(config, options.drain, lambda: announce(f"Serving {words} ({options.backend}) at {url}"))
    with listening:
        asyncio.run(server.serve([listening]))
    if server.unfit is not None:
        raise server.unfit


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where it sees that a socket is TCP; with it on, a step takes 40 ms more.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"Cannot listen on {host} port {port}: {reason}; choose another with --port.") from error
    return bound


class _Server(uvicorn.Server):
    """Signals begin a drain instead of closing the listener, because live leases need new connections too."""

    def __init__(self, config: uvicorn.Config, drain: float, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain, self._announce = drain, announce
        self._draining: asyncio.Task[None] | None = None
        self.unfit: ConfigError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end_gently)
        loop.add_signal_handler(signal.SIGINT, self._end_now)
        self._supervisor.unfit.add_done_callback(self._give_up)
        self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # handlers are on the loop, set in `startup`

    def _end_gently(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain_and_exit())
        else:
            self._end_now()

    def _end_now(self) -> None:
        self._supervisor.refuse()
        self.should_exit = True

    def _give_up(self, unfit: asyncio.Future[ConfigError]) -> None:
        self.unfit = unfit.result()
        self._end_now()

    async def _drain_and_exit(self) -> None:
        await self._supervisor.drain(self._drain)
        self.should_exit = True

    @property
    def _supervisor(self) -> Supervisor:
        supervisor: Supervisor = self.config.app.state.supervisor  # type: ignore[union-attr]
        return supervisor
