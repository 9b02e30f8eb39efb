"""Many env servers as one source of desktops: who can play a task, who is alive, who has a desktop free."""

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import httpx

from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.envs.client import RemoteEnv, RemoteLease, Server
from flywheel.errors import ConfigError, InfrastructureError, SetupError
from flywheel.types import Task

TOKEN_VARIABLE = "FLYWHEEL_DESKTOPS_TOKEN"
POLL_SECONDS = 20.0
"""One request waits so long for a free desktop before the next server is asked."""
UNREACHABLE_SECONDS = 15.0
"""When no server answers, an episode fails after so long."""
NO_APPS = frozenset({"os", "multi_apps"})
"""Names among a task's apps that stand for no app."""


class EnvPool:
    """`async with EnvPool("http://a:8100,http://b:8100") as pool: env = pool.env()`. Belongs to one event loop.

    Args:
        urls: comma-separated; a token may stand in each as the password.
        token: for servers whose URL has none; by default `$FLYWHEEL_DESKTOPS_TOKEN`.
        observe: what observations hold.
        wait: seconds that an episode may wait for a free desktop before it fails.
    """

    def __init__(
        self, urls: str, *, token: str | None = None, observe: ObserveOptions | None = None, wait: float = 1800.0
    ) -> None:
        names = [url.strip() for url in urls.split(",") if url.strip()]
        if not names:
            raise ConfigError("No env server is named; set env.urls to one URL or more, separated by commas.")
        # Servers reached without TLS are in reach without a proxy; its settings are for the others.
        secure = any(name.startswith("https://") for name in names)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(verify=secure, trust_env=secure, limits=limits)
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        self.servers = [Server(name, token, self._http) for name in dict.fromkeys(names)]
        self._observe, self._wait = observe or ObserveOptions(), wait
        self._client = f"{socket.gethostname()}:{os.getpid()}"
        self._turn = 0

    async def __aenter__(self) -> "EnvPool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def env(self) -> RemoteEnv:
        """One environment; holds a desktop from `reset` to `evaluate`."""
        return RemoteEnv(self.lease, self._observe)

    async def close(self) -> None:
        """Close every connection. Environments are closed by who opened them, before."""
        await self._http.aclose()

    async def health(self) -> dict[str, dict[str, Any] | str]:
        """URL -> what the server says of itself, or a sentence when it does not answer."""

        async def ask(server: Server) -> dict[str, Any] | str:
            try:
                return await server.health()
            except (InfrastructureError, ConfigError) as error:
                return str(error)

        found = await asyncio.gather(*map(ask, self.servers))
        return {server.url: said for server, said in zip(self.servers, found, strict=True)}

    async def lease(self, task: Task) -> RemoteLease:
        """A desktop that can play `task`, from whichever server has one free first.

        Raises `SetupError` when no server can play it at all, `InfrastructureError` when none answers or none has a
        desktop free for too long, `ConfigError` when a token is refused.
        """
        apps = needed_apps(task)
        began = reached = time.monotonic()
        asked = False  # first everyone is asked who is free, then one waits at one of them after the other
        while True:
            fitting, lacking, silent = await self._sort(task, apps)
            if not fitting and not silent:
                raise SetupError(f"No env server can play task {task.id}: {'; '.join(lacking)}.")
            alone = asked or len(fitting) == 1
            patience = min(POLL_SECONDS, max(0.0, began + self._wait - time.monotonic())) if alone else 0.0
            for server in fitting[:1] if alone else fitting:
                lease = await self._try(server, task, apps, patience)
                if lease is not None:
                    return lease
            if fitting:
                asked, reached = True, time.monotonic()
            elif time.monotonic() - reached > UNREACHABLE_SECONDS:
                raise InfrastructureError(silent[0])
            if time.monotonic() - began > self._wait:
                raise InfrastructureError(f"No desktop for task {task.id} became free within {self._wait:g} seconds.")
            await asyncio.sleep(0.0 if fitting else 0.5)

    async def _try(self, server: Server, task: Task, apps: frozenset[str], wait: float) -> RemoteLease | None:
        try:
            return await server.lease(task, apps, wait, self._client)
        except InfrastructureError:
            return None  # its breaker has counted it

    async def _sort(self, task: Task, apps: frozenset[str]) -> tuple[list[Server], list[str], list[str]]:
        """Servers that can play the task, in turns; why others cannot; what is wrong with those that do not answer."""

        async def ask(server: Server) -> Capabilities | str:
            if not server.breaker.closed:
                return server.problem
            try:
                return await server.capabilities()
            except InfrastructureError as error:
                return str(error)

        fitting, lacking, silent = [], [], []
        for server, said in zip(self.servers, await asyncio.gather(*map(ask, self.servers)), strict=True):
            if isinstance(said, str):
                silent.append(said)
            elif reason := why_not(task, apps, said):
                lacking.append(f"{server.url} {reason}")
            else:
                fitting.append(server)
        self._turn += 1
        first = self._turn % max(1, len(fitting))
        return [*fitting[first:], *fitting[:first]], lacking, silent


def remote_env(
    urls: str, *, token: str | None = None, observe: ObserveOptions | None = None, wait: float = 1800.0
) -> RemoteEnv:
    """One environment with a pool of its own, which `close` closes too; for who plays one at a time."""
    pool = EnvPool(urls, token=token, observe=observe, wait=wait)
    return RemoteEnv(pool.lease, observe or ObserveOptions(), pool.close)


def needed_apps(task: Task) -> frozenset[str]:
    """OSWorld's names of the apps that a task is about."""
    named = task.raw.get("related_apps", ()) if isinstance(task.raw, Mapping) else ()
    return frozenset(str(name) for name in named) - NO_APPS if isinstance(named, list | tuple) else frozenset()


def why_not(task: Task, apps: frozenset[str], offered: Capabilities) -> str | None:
    """Why a desktop cannot play a task, as the rest of a sentence about it; None when it can."""
    if task.platform != offered.platform:
        return f"has desktops of platform '{offered.platform}', not '{task.platform}'"
    if missing := sorted(apps - offered.apps):
        return f"has no {', '.join(missing)}"
    return None
