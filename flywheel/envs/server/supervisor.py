"""Keeps a pool of desktops warm: one worker process each, leased to one client at a time, recycled before the next.

Each desktop is tended by a task of its own. Clients queue in the order of their requests; when no desktop is free they
wait or are told so, and a live lease is never taken away. A worker that dies, hangs or is unwell is killed and
replaced.
"""

import asyncio
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flywheel.envs.base import Capabilities
from flywheel.envs.server.desktop import Desktop, WorkerSpec
from flywheel.envs.server.folders import RunFolder
from flywheel.envs.server.leases import Lease, LeaseBook, Refusal
from flywheel.errors import ConfigError, EnvError, InfrastructureError

HEALTH_SECONDS = 15.0
"""Between two questions after the health of a free desktop."""
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.25, 60.0
"""Before a desktop that keeps failing is started again; doubles from the first to the last."""
STABLE_SECONDS = 10.0
"""A desktop that lasted so long is replaced at once."""
RELEASE_SECONDS = 5.0
"""A command may go on for so long after its lease was released; then the worker is replaced."""
TICK_SECONDS = 0.25
"""Between two looks for leases that have expired."""


class Supervisor:
    """`open`, then `lease` as often as one likes, then `await close()`. Made on the event loop that it lives on.

    Args:
        spec: how workers are started.
        desktops: how many are kept.
        root: folder of all desktops on this machine.
        backend: name of the kind, for people and for those who clean up.
        report: told, in a sentence, of every desktop that was lost.

    `unfit` is done when no desktop will ever start, because of how they are configured.
    """

    def __init__(
        self, spec: WorkerSpec, desktops: int, root: Path, backend: str, report: Callable[[str], None]
    ) -> None:
        self.spec, self.backend, self._report = spec, backend, report
        self.book = LeaseBook()
        self.draining = False
        self.folder = RunFolder(root, backend)
        self.desktops = [Desktop(number, spec, self.folder) for number in range(desktops)]
        self._free: OrderedDict[Desktop, asyncio.Future[Lease]] = OrderedDict()
        self._waiting: deque[tuple[asyncio.Future[Lease], str, float]] = deque()
        self._known: asyncio.Future[Capabilities] = asyncio.Future()
        self.unfit: asyncio.Future[ConfigError] = asyncio.Future()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def waiting(self) -> int:
        """Requests that wait for a desktop."""
        return sum(not future.done() for future, _, _ in self._waiting)

    def open(self) -> None:
        """Start every desktop, in the background."""
        self._tasks = [asyncio.create_task(self._tend(desktop)) for desktop in self.desktops]
        self._tasks.append(asyncio.create_task(self._watch_clock()))

    async def capabilities(self, wait: float = 30.0) -> Capabilities:
        """Of any desktop; they are all alike. Raises `InfrastructureError` while none has ever started."""
        await asyncio.wait({self._known}, timeout=wait)
        if not self._known.done():
            raise InfrastructureError(f"No desktop of this server has started yet: {self._why_none()}")
        return self._known.result()

    async def lease(self, *, client: str, ttl: float, wait: float) -> Lease:
        """A clean desktop, after at most `wait` seconds.

        Raises `Refusal` 429 when all are taken for so long, 503 when the server drains or no desktop is alive.
        """
        if self.draining:
            raise _drains()
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, client, ttl))
        self._match()
        try:
            await asyncio.wait({future}, timeout=wait)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().end("The client went away before it got its desktop.")
            raise
        finally:
            self._waiting = deque(each for each in self._waiting if each[0] is not future)
            if not future.done():
                future.cancel()
        if not future.cancelled():
            return future.result()
        if all(desktop.state in ("broken", "stopped") for desktop in self.desktops):
            raise Refusal(503, f"No desktop is alive: {self._why_none()}", kind="infrastructure", retry_after=5.0)
        raise Refusal(429, f"All {len(self.desktops)} desktops are taken; try again later.", retry_after=1.0)

    def refuse(self) -> None:
        """Give out no more leases, also to those who wait."""
        self.draining = True
        for future, _, _ in self._waiting:
            if not future.done():
                future.set_exception(_drains())

    async def drain(self, limit: float) -> None:
        """Refuse new leases, and return when the live ones have ended or after `limit` seconds."""
        self.refuse()
        if ending := [asyncio.create_task(lease.ended.wait()) for lease in self.book.live()]:
            await asyncio.wait(ending, timeout=limit)

    async def close(self) -> None:
        """End every lease and every worker; nothing is left."""
        self.draining = True
        for lease in self.book.live():
            lease.end("The env server was stopped.", "infrastructure")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(desktop.stop() for desktop in self.desktops))
        self.folder.close()

    # --- one task a desktop ----------------------------------------------------------------------------------------

    async def _tend(self, desktop: Desktop) -> None:
        delay = 0.0
        while True:
            began = time.monotonic()
            try:
                capabilities = await desktop.start()
                if not self._known.done():
                    self._known.set_result(capabilities)
                while True:
                    await self._play(desktop)
            except ConfigError as error:
                if not self._known.done():  # no other desktop will fare better, nor this one later
                    if not self.unfit.done():
                        self.unfit.set_result(error)
                    return
                problem = str(error)
            except EnvError as error:
                problem = str(error)
            except Exception as error:  # a bug costs one desktop its turn, not the server its desktop
                traceback.print_exc()
                problem = f"The supervisor failed with {type(error).__name__}: {error}."
            desktop.problem, desktop.state = problem, "broken"
            self._report(f"Desktop {desktop.number} was lost: {problem}")
            try:
                await desktop.kill()
            except (EnvError, OSError) as error:
                self._report(f"Desktop {desktop.number} left something behind: {error}")
            lasted = time.monotonic() - began > STABLE_SECONDS
            delay = 0.0 if lasted else min(MAX_DELAY_SECONDS, max(FIRST_DELAY_SECONDS, 2 * delay))
            await asyncio.sleep(delay)

    async def _play(self, desktop: Desktop) -> None:
        """One lease, then back to a clean desktop. Raises `InfrastructureError` when the desktop was lost."""
        lease = await self._offer(desktop)
        ended = asyncio.ensure_future(lease.ended.wait())
        events: list[asyncio.Future[Any]] = [ended, desktop.lost]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if desktop.lost.done():
                lease.end(desktop.lost.result(), "infrastructure")
        finally:
            ended.cancel()
            self.book.forget(lease)
        if not await lease.quiet(RELEASE_SECONDS):
            desktop.lose(f"Desktop {desktop.number} was released in the middle of a command.")
        if desktop.lost.done():
            raise InfrastructureError(desktop.lost.result())
        desktop.state = "recycling"
        await desktop.end_view()
        await desktop.call("recycle", self.spec.deadlines.recycle)

    async def _offer(self, desktop: Desktop) -> Lease:
        """Keep a desktop in the pool until someone leases it, asking after its health now and then."""
        turn: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        events: list[asyncio.Future[Any]] = [turn, desktop.lost]
        desktop.state = "free"
        try:
            while True:
                self._free[desktop] = turn
                self._match()
                await asyncio.wait(events, timeout=HEALTH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if turn.done():
                    return turn.result()
                self._free.pop(desktop, None)
                await desktop.check()
        finally:
            self._free.pop(desktop, None)

    def _match(self) -> None:
        """Give free desktops to those who wait, both in their order."""
        while self._free and self._waiting:
            if not next(iter(self._free)).alive:
                self._free.popitem(last=False)  # whoever tends it is about to notice
                continue
            future, client, ttl = self._waiting.popleft()
            if future.done():
                continue
            desktop, turn = self._free.popitem(last=False)
            lease = self.book.open(desktop, client, ttl)
            desktop.state = "leased"
            turn.set_result(lease)
            future.set_result(lease)

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.book.expire()

    def _why_none(self) -> str:
        problems = [desktop.problem for desktop in self.desktops if desktop.problem]
        return problems[0] if problems else "they are still booting."


def _drains() -> Refusal:
    return Refusal(503, "The env server is draining and gives out no more desktops.", kind="infrastructure")
