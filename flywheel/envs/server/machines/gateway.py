"""Sandboxes of a cluster, behind a gateway: leased, kept alive, and waited for when the cluster is full.

A vendor's SDK goes behind `Sandboxes`, a class of four methods; `gateway_http.py` is the one for plain HTTPS. Where the
cluster says that it is full (`BusyError`: status 429 or 503), callers park. Waits double from one second to a minute,
with jitter so that a thousand desktops do not come back together, and is never shorter than the cluster asked for. That
holds for a request in the middle of an episode as well, so an episode outlives a burst at the quota.
"""

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import tenacity

from flywheel.envs.server.machines.base import Endpoints, refuse_unknown
from flywheel.errors import InfrastructureError

T = TypeVar("T")
Park = Callable[[Callable[[], Any]], Any]

_JITTER = tenacity.wait_random_exponential(multiplier=1.0, max=60.0)
_DEFAULTS: dict[str, Any] = {
    "url": "",
    "image": "",
    "ttl_s": 600.0,
    "park_s": 1800.0,
    "boot_timeout_s": 300.0,
    "sdk": "flywheel.envs.server.machines.gateway_http:open_gateway",
}


class BusyError(InfrastructureError):
    """The cluster is full; `retry_after` is how many seconds it asks to wait (0: it did not say)."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A leased sandbox; without `renew` it ends in `expires_in_s` seconds."""

    id: str
    expires_in_s: float


class Sandboxes(Protocol):
    """A cluster. Every method may raise `BusyError`, or `InfrastructureError` when it is no use to wait."""

    def create(self) -> Sandbox:
        """Lease a new one, booted or booting."""
        ...

    def connect(self, sandbox: Sandbox, park: Park) -> tuple[Endpoints, Callable[[], None]]:
        """Where its guest is reached as plain HTTP, and how to close that again. `park` runs a request that may be
        refused for the quota, until it is not."""
        ...

    def renew(self, sandbox: Sandbox) -> Sandbox:
        """Keep it; the same sandbox with its new `expires_in_s`."""
        ...

    def delete(self, sandbox: Sandbox) -> None:
        """End it; one that is gone already is fine."""
        ...


def parked(work: Callable[[], T], patience: float, sleep: Callable[[float], None] = time.sleep) -> T:
    """What `work` returns, tried again while it raises `BusyError`; after `patience` seconds that is raised."""

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after if isinstance(error, BusyError) else 0.0
        return asked + _JITTER(state)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BusyError),
        stop=tenacity.stop_after_delay(patience),
        wait=wait,
        sleep=sleep,
        reraise=True,
    )
    return retrying(work)


class GatewayMachine:
    """A `Machine` leased from a cluster; `revert` takes a fresh sandbox instead.

    Args:
        options: `url` and `image` of the cluster; `ttl_s` of a lease; `park_s`, how long to wait for a full cluster;
            `boot_timeout_s`; `sdk`, `module:function` that makes `Sandboxes` of these options. Secrets are no options:
            they come from the environment.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_unknown("A gateway machine", options, _DEFAULTS)
        self._options = {**_DEFAULTS, **options}
        module, _, name = str(self._options["sdk"]).partition(":")
        self._cluster: Sandboxes = getattr(importlib.import_module(module), name)(self._options)
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self._sandbox: Sandbox | None = None
        self._endpoints: Endpoints | None = None
        self._close: Callable[[], None] = lambda: None
        self._lost: str | None = None

    def start(self) -> None:
        self._stopping.clear()
        self._lost = None
        self._sandbox = self._parked(self._cluster.create)
        self._keeper = threading.Thread(target=self._keep, args=(self._sandbox,), name="lease", daemon=True)
        self._keeper.start()
        try:
            self._endpoints, self._close = self._cluster.connect(self._sandbox, self._parked)
            self._wait_for_guest()
        except BaseException:
            self.stop()
            raise

    def endpoints(self) -> Endpoints:
        if self._endpoints is None:
            raise InfrastructureError("The sandbox is not started; start it first.")
        return self._endpoints

    def revert(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join()
        self._close()
        if self._sandbox is not None:
            with contextlib.suppress(InfrastructureError):  # it expires by itself
                self._cluster.delete(self._sandbox)
        self._keeper = self._sandbox = self._endpoints = None
        self._close = lambda: None

    def health(self) -> str | None:
        from flywheel.envs.server.machines.remote import RemoteMachine

        where = self._endpoints
        if where is None:
            return "The sandbox is not started."
        return self._lost or RemoteMachine({"host": where.host, "server": where.server}).health()

    def _wait_for_guest(self) -> None:
        deadline = time.monotonic() + self._options["boot_timeout_s"]
        while (ailment := self.health()) is not None:
            if self._lost or time.monotonic() > deadline:
                raise InfrastructureError(f"The sandbox did not boot: {ailment}")
            self._stopping.wait(0.5)

    def _keep(self, sandbox: Sandbox) -> None:
        """Renews at a third of the lease's time, so two renewals may fail before the lease is lost."""
        ends = time.monotonic() + sandbox.expires_in_s
        while not self._stopping.wait(sandbox.expires_in_s / 3):
            try:
                sandbox = self._cluster.renew(sandbox)
                ends = time.monotonic() + sandbox.expires_in_s
            except InfrastructureError as error:
                if time.monotonic() > ends or not isinstance(error, BusyError):
                    self._lost = f"The lease of the sandbox was lost: {error}"
                    return

    def _parked(self, work: Callable[[], T]) -> T:
        """Ends early when the machine is stopped meanwhile."""

        def sleep(seconds: float) -> None:
            if self._stopping.wait(seconds):
                raise InfrastructureError("The sandbox was stopped while a request waited for the cluster.")

        return parked(work, self._options["park_s"], sleep)
