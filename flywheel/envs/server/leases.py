"""A lease: one client's hold on one desktop, from the grant to the end, and the order of commands in between.

A lease lives while its client shows up: every command and every heartbeat puts the end off by `ttl` seconds, and it
never expires in the middle of a command. The last answer is kept, so that a client whose connection was cut asks again
and gets the same answer; nothing is executed twice.
"""

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from typing import Any

from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.envs.server.desktop import Desktop
from flywheel.envs.server.viewer import why_no_page
from flywheel.envs.wire import action_to_json, frame_head, options_to_json, task_to_json
from flywheel.errors import EnvError, InfrastructureError
from flywheel.types import Action, Task

FIRST_SECONDS = 15.0
"""A new lease lives so long until its client shows up for the first time: the answer that granted it may be lost."""
VIEW_SECONDS = 60.0
"""Whoever wants to look waits so long for a command that runs; a reset or an evaluation may take minutes."""
KEPT_ENDS = 4096
"""Ended leases whose reason is remembered."""


class Refusal(Exception):
    """A request that the protocol does not allow now; `status` is its HTTP status."""

    def __init__(self, status: int, message: str, *, kind: str = "request", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_after = status, kind, retry_after


class Lease:
    """One hold. Commands of several connections wait for each other."""

    def __init__(self, desktop: Desktop, client: str, ttl: float) -> None:
        self.id = secrets.token_hex(8)
        self.secret = secrets.token_urlsafe(24)
        self.desktop, self.client, self.ttl = desktop, client, ttl
        self.created = time.monotonic()
        self.expires = self.created + min(ttl, FIRST_SECONDS)
        self.seen = False
        self.task: Task | None = None
        self.steps = 0
        self.over: str | None = None
        self.kind = "request"
        self.ended = asyncio.Event()
        self._one = asyncio.Lock()
        self._used = False
        self._request: str | None = None
        self._action: Action | None = None
        self._first = self._last = b""
        self._judged: float | EnvError | None = None

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return self._one.locked()

    async def quiet(self, patience: float) -> bool:
        """Wait until no command runs; False when one still does after `patience` seconds."""
        try:
            # Not `wait_for`, which in Python 3.11 loses a cancellation that comes together with the lock.
            async with asyncio.timeout(patience), self._one:
                return True
        except TimeoutError:
            return False

    @property
    def capabilities(self) -> Capabilities:
        assert self.desktop.capabilities is not None, "only started desktops are leased"
        return self.desktop.capabilities

    def touch(self) -> None:
        """The client is there."""
        self.seen = True
        self.expires = time.monotonic() + self.ttl

    def end(self, reason: str, kind: str = "request") -> None:
        """Over, for good. `kind` is `infrastructure` when the desktop is to blame."""
        if self.over is None:
            self.over, self.kind = reason, kind
            self.ended.set()

    def refuse_over(self) -> None:
        """Raises `Refusal` 410 when it has ended."""
        if self.over is not None:
            raise Refusal(410, self.over, kind=self.kind)

    # --- commands: each answers, or raises `Refusal` or an `EnvError` --------------------------------------------

    async def reset(self, task: Task, options: ObserveOptions, request: str | None = None) -> bytes:
        """Set up a task; on a desktop that has played already, after recycling it.

        The same `request` again, before any step, gives the stored answer.
        """
        if options.image not in self.capabilities.images:
            raise Refusal(
                400, f"This desktop sends {', '.join(sorted(self.capabilities.images))}, not {options.image}."
            )
        async with self._one:
            if request is not None and request == self._request and self.steps == 0:
                return self._first
            deadlines = self.desktop.spec.deadlines
            self.task, self.steps, self._request, self._judged = None, 0, None, None
            if self._used:
                await self.desktop.end_view()
                await self._call("recycle", deadlines.recycle)
            self._used = True
            arguments = {"task": task_to_json(task), "options": options_to_json(options)}
            self._first = await self._call("reset", deadlines.reset, **arguments)
            self.task, self._request = task, request
            self.desktop.episodes += 1
            return self._first

    async def step(self, index: int | None, action: Action, pause: float | None) -> bytes:
        """Step number `index` of the episode, from 0; None is the next one.

        The last step again, with the same number and action, gives the stored answer.
        """
        async with self._one:
            self._refuse_without_episode()
            index = self.steps if index is None else index
            if index == self.steps - 1 and action == self._action:
                self.touch()
                return self._last
            if index != self.steps:
                raise Refusal(409, f"Step {index} is out of order: the next one is {self.steps}.")
            if self._judged is not None:
                raise Refusal(409, "The episode was judged already; reset it first.")
            deadline = self.desktop.spec.deadlines.step + (pause or 0.0) + getattr(action, "seconds", 0.0)
            self._last = await self._call("step", deadline, action=action_to_json(action), pause=pause)
            self._action = action
            self.steps += 1
            return self._last

    async def observe(self) -> bytes:
        """The screen as it is."""
        async with self._one:
            self._refuse_without_episode()
            return await self._call("observe", self.desktop.spec.deadlines.observe)

    async def evaluate(self) -> float:
        """The task's checker, once; the stored answer afterwards, failures too."""
        async with self._one:
            self._refuse_without_episode()
            if self._judged is None:
                try:
                    head, _ = frame_head(await self._call("evaluate", self.desktop.spec.deadlines.evaluate))
                    self._judged = float(head["reward"])
                except EnvError as error:
                    self._judged = error
            self.touch()
            if isinstance(self._judged, EnvError):
                raise self._judged
            return self._judged

    async def view(self) -> str:
        """Address of a page that shows the desktop, until it is recycled; on the server's own loopback.

        Raises `Refusal` 409 where it cannot be shown, and when a command takes longer than `VIEW_SECONDS`.
        """
        self.refuse_over()
        if (why_not := why_no_page()) is not None:
            raise Refusal(409, why_not)
        try:
            async with asyncio.timeout(VIEW_SECONDS) as patience, self._one:
                patience.reschedule(None)
                self.refuse_over()
                return await self._show()
        except TimeoutError as error:
            message = f"Desktop {self.desktop.number} is in the middle of a command; ask again in a moment."
            raise Refusal(409, message, retry_after=1.0) from error

    async def _show(self) -> str:
        head, _ = frame_head(await self.desktop.call("view", self.desktop.spec.deadlines.view))
        if "port" not in head:
            raise Refusal(409, str(head.get("why_not")))
        try:
            return await self.desktop.show(int(head["port"]))
        except OSError as error:
            raise Refusal(409, f"The page cannot be served: {error.strerror or error}.") from error

    def _refuse_without_episode(self) -> None:
        self.refuse_over()
        if self.task is None:
            raise Refusal(409, "There is no episode on this lease yet; reset it first.")

    async def _call(self, command: str, deadline: float, **arguments: Any) -> bytes:
        self.refuse_over()
        try:
            return await self.desktop.call(command, deadline, **arguments)
        except InfrastructureError as error:
            self.end(str(error), "infrastructure")
            raise
        finally:
            self.touch()


class LeaseBook:
    """All leases by id; those that ended are remembered with their reason."""

    def __init__(self) -> None:
        self._live: dict[str, Lease] = {}
        self._over: OrderedDict[str, Lease] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def live(self) -> list[Lease]:
        """In the order of their grants."""
        return list(self._live.values())

    def open(self, desktop: Desktop, client: str, ttl: float) -> Lease:
        """A new lease."""
        lease = Lease(desktop, client, ttl)
        self._live[lease.id] = lease
        return lease

    def forget(self, lease: Lease) -> None:
        """It has ended; only its reason stays."""
        self._live.pop(lease.id, None)
        self._over[lease.id] = lease
        while len(self._over) > KEPT_ENDS:
            self._over.popitem(last=False)

    def find(self, id: str, secret: str | None) -> Lease:
        """The lease, also one that is over. Raises `Refusal` 404 or 403."""
        lease = self._live.get(id) or self._over.get(id)
        if lease is None:
            raise Refusal(404, "There is no such lease; it may be from before a restart of this server.")
        if secret is None or not hmac.compare_digest(secret.encode(), lease.secret.encode()):
            raise Refusal(403, "This lease belongs to another client; send its secret as X-Lease-Secret.")
        return lease

    def expire(self) -> None:
        """End every lease whose client has not shown up for its ttl; those in a command are left."""
        now = time.monotonic()
        for lease in self.live():
            if not lease.busy and now > lease.expires:
                silent = f"was silent for {lease.ttl:g} seconds" if lease.seen else "never showed up"
                lease.end(f"The lease expired: its client {silent}.")
