"""The env server as an ASGI application: the native protocol under /v1, both bridges, errors as JSON."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from flywheel.envs.server.bridges import Bridges, is_bridge
from flywheel.envs.server.guard import Guard
from flywheel.envs.server.leases import Lease, Refusal
from flywheel.envs.server.protocol import (
    VERSION,
    Beat,
    CapabilitiesModel,
    DesktopInfo,
    EmptyRequest,
    ErrorBody,
    Health,
    LeaseGrant,
    LeaseInfo,
    LeaseRequest,
    ResetRequest,
    Reward,
    StepRequest,
    View,
)
from flywheel.envs.server.supervisor import Supervisor
from flywheel.envs.wire import (
    FRAME_TYPE,
    WireError,
    action_from_json,
    capabilities_to_json,
    options_from_json,
    task_from_json,
)
from flywheel.errors import ActionError, EnvError, InfrastructureError, TaskError

BODY_LIMIT = 8 << 20
"""Bytes that a request may have."""
RETRY_SECONDS = 2


@dataclass(frozen=True, slots=True)
class AppOptions:
    """How the application answers. `bridge_ttl` and `bridge_wait` are for clients that send no heartbeats: seconds of
    silence after which their desktop is taken back, and seconds that they wait for one before they are told 429 (the
    cookbook's client gives up after 120)."""

    token: str | None = None
    body_limit: int = BODY_LIMIT
    bridge_ttl: float = 900.0
    bridge_wait: float = 90.0


def build_app(make_supervisor: Callable[[], Supervisor], options: AppOptions) -> FastAPI:
    """The application; its supervisor is made when it starts and stands in `app.state.supervisor`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        supervisor = app.state.supervisor = make_supervisor()
        supervisor.open()
        try:
            yield
        finally:
            await supervisor.close()

    app = _GuardedApp(
        options,
        title="flywheel desktops",
        version=version("flywheel"),
        description="Leases desktops, plays tasks on them and judges them. The bridges are older protocols.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        max_body_size=options.body_limit,
    )
    app.include_router(native)
    app.include_router(Bridges(options.bridge_ttl, options.bridge_wait).router)
    _answer_errors(app)
    return app


class _GuardedApp(FastAPI):
    """The guard stands outside of everything, also of FastAPI's own middleware."""

    def __init__(self, options: AppOptions, **more: Any) -> None:
        super().__init__(**more)
        self._options = options

    def build_middleware_stack(self) -> ASGIApp:
        return Guard(super().build_middleware_stack(), self._options.token, self._options.body_limit)


# --- errors ------------------------------------------------------------------------------------------------------


def _answer_errors(app: FastAPI) -> None:
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(EnvError, _env_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _bug)
    for kind in (ActionError, TaskError, WireError):
        app.add_exception_handler(kind, lambda request, error: _answer(request, 400, "request", str(error)))


def _answer(request: Request, status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error in the form of the protocol that the client speaks. ASCII JSON carries any text it may have sent."""
    body: Any = {"error": message if is_bridge(request) else {"kind": kind, "message": message}}
    return Response(json.dumps(body), status, headers, "application/json")


def _refusal(request: Request, error: Any) -> Response:
    headers = {"Retry-After": f"{error.retry_after:g}"} if error.retry_after is not None else None
    return _answer(request, error.status, error.kind, str(error), headers)


def _env_error(request: Request, error: Any) -> Response:
    infrastructure = isinstance(error, InfrastructureError)
    status = 500 if is_bridge(request) else 503 if infrastructure else 422
    return _answer(
        request, status, error.kind, str(error), {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    )


def _http_error(request: Request, error: Any) -> Response:
    return _answer(request, error.status_code, "request", f"{error.detail}.".replace("..", "."), error.headers)


def _validation_error(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _answer(request, 400, "request", f"The body is not JSON, from character {first['loc'][-1]} on.")
    where = ".".join(str(part) for part in first["loc"][1:])
    message = f"{where}: {first['msg']}." if where else f"{first['msg']}."
    return _answer(request, 400, "request", message)


def _bug(request: Request, error: Exception) -> Response:
    return _answer(request, 500, "infrastructure", f"The env server met a bug ({type(error).__name__}); see its log.")


# --- the native protocol --------------------------------------------------------------------------------------------


def supervisor_of(request: Request) -> Supervisor:
    """Of the running application."""
    supervisor: Supervisor = request.app.state.supervisor
    return supervisor


def lease_of(
    lease: str, request: Request, x_lease_secret: Annotated[str | None, Header(max_length=200)] = None
) -> Lease:
    """The lease that a path names, for whoever knows its secret."""
    return supervisor_of(request).book.find(lease, x_lease_secret)


Pool = Annotated[Supervisor, Depends(supervisor_of)]
Held = Annotated[Lease, Depends(lease_of)]

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "malformed"},
    401: {"model": ErrorBody, "description": "wrong token"},
    413: {"model": ErrorBody, "description": "too large"},
    503: {"model": ErrorBody, "description": "infrastructure failure, or draining"},
}
_HELD: dict[int | str, dict[str, Any]] = {
    403: {"model": ErrorBody, "description": "another client's lease"},
    404: {"model": ErrorBody, "description": "unknown lease"},
    409: {"model": ErrorBody, "description": "out of order"},
    410: {"model": ErrorBody, "description": "the lease is over"},
    422: {"model": ErrorBody, "description": "the task's set-up or checker failed"},
}
_FRAME: dict[int | str, dict[str, Any]] = {
    200: {"content": {FRAME_TYPE: {"schema": {"type": "string", "format": "binary"}}}, "description": "a frame"},
    **_HELD,
}

native = APIRouter(prefix="/v1", responses=_ERRORS, tags=["native"])


@native.get("/health")
async def health(pool: Pool) -> Health:
    """How the server is."""
    return Health(
        status="draining" if pool.draining else "ok",
        protocol=VERSION,
        version=version("flywheel"),
        backend=pool.backend,
        desktops=len(pool.desktops),
        free=pool.free,
        leases=len(pool.book),
        waiting=pool.waiting,
        problems=[each.problem for each in pool.desktops if each.state == "broken" and each.problem],
    )


@native.get("/capabilities")
async def capabilities(pool: Pool) -> CapabilitiesModel:
    """What every desktop of this server offers; waits for the first one to boot."""
    return CapabilitiesModel(**capabilities_to_json(await pool.capabilities()))


@native.get("/desktops")
async def desktops(pool: Pool) -> list[DesktopInfo]:
    """The pool, desktop by desktop."""
    held = {lease.desktop.number: lease.id for lease in pool.book.live()}
    now = time.monotonic()
    return [
        DesktopInfo(
            desktop=each.number,
            state=each.state,
            since_s=now - each.since,
            pid=each.pid,
            lease=held.get(each.number),
            episodes=each.episodes,
            starts=each.starts,
            problem=each.problem,
        )
        for each in pool.desktops
    ]


@native.post("/leases", status_code=201, responses={422: _HELD[422], 429: {"model": ErrorBody, "description": "full"}})
async def open_lease(asked: LeaseRequest, pool: Pool, request: Request) -> LeaseGrant:
    """A clean desktop of one's own."""
    offered = await pool.capabilities()
    if asked.platform is not None and asked.platform != offered.platform:
        raise Refusal(422, f"Desktops here are of platform '{offered.platform}', not '{asked.platform}'.", kind="setup")
    if missing := sorted(set(asked.apps) - offered.apps):
        raise Refusal(422, f"Desktops here have no {', '.join(missing)}.", kind="setup")
    lease = await pool.lease(client=asked.client, ttl=asked.ttl_s, wait=asked.wait_s)
    if await request.is_disconnected():
        lease.end("The client went away before it got its desktop.")
    return LeaseGrant(
        lease=lease.id,
        secret=lease.secret,
        expires_in_s=max(0.0, lease.expires - time.monotonic()),
        desktop=lease.desktop.number,
        capabilities=CapabilitiesModel(**capabilities_to_json(lease.capabilities)),
    )


@native.get("/leases")
async def leases(pool: Pool) -> list[LeaseInfo]:
    """Live leases."""
    now = time.monotonic()
    return [
        LeaseInfo(
            lease=each.id,
            desktop=each.desktop.number,
            client=each.client,
            age_s=now - each.created,
            expires_in_s=max(0.0, each.expires - now),
            task=each.task.id if each.task is not None else None,
            steps=each.steps,
        )
        for each in pool.book.live()
    ]


@native.post("/leases/{lease}/heartbeat", responses=_HELD)
async def heartbeat(held: Held, nothing: EmptyRequest | None = None) -> Beat:
    """The client is still there."""
    held.refuse_over()
    held.touch()
    return Beat(expires_in_s=held.ttl)


@native.delete("/leases/{lease}", status_code=204, responses={403: _HELD[403], 404: _HELD[404]})
async def close_lease(held: Held) -> Response:
    """Give the desktop back; again is fine."""
    held.end("The lease was released by its client.")
    return Response(status_code=204)


@native.post("/leases/{lease}/reset", response_class=Response, responses=_FRAME)
async def reset(asked: ResetRequest, held: Held) -> Response:
    """Set a task up and look: the frame of an observation."""
    task, options = task_from_json(asked.task), options_from_json(asked.observe.model_dump())
    return _frame(await held.reset(task, options, asked.request))


@native.post("/leases/{lease}/step", response_class=Response, responses=_FRAME)
async def step(asked: StepRequest, held: Held) -> Response:
    """Execute one action and look: the frame of a step's result."""
    return _frame(await held.step(asked.index, action_from_json(asked.action), asked.pause_s))


@native.get("/leases/{lease}/observation", response_class=Response, responses=_FRAME)
async def observation(held: Held) -> Response:
    """Look: the frame of an observation."""
    return _frame(await held.observe())


@native.post("/leases/{lease}/evaluate", responses=_HELD)
async def evaluate(held: Held, nothing: EmptyRequest | None = None) -> Reward:
    """The task's checker, once; the stored answer afterwards."""
    return Reward(reward=await held.evaluate())


@native.post("/leases/{lease}/view", responses=_HELD)
async def view(held: Held, nothing: EmptyRequest | None = None) -> View:
    """Show the desktop on a page of the server's own machine, until it is recycled; view only."""
    held.refuse_over()
    held.touch()
    return View(url=await held.view())


@native.post("/desktops/{desktop}/view", responses={404: {"model": ErrorBody}, 409: {"model": ErrorBody}})
async def watch(desktop: int, pool: Pool, nothing: EmptyRequest | None = None) -> View:
    """The same for whoever runs the server: any leased desktop, without its lease's secret."""
    held = next((lease for lease in pool.book.live() if lease.desktop.number == desktop), None)
    if held is not None:
        return View(url=await held.view())
    if not 0 <= desktop < len(pool.desktops):
        raise Refusal(404, f"There is no desktop {desktop}; this server has {len(pool.desktops)}, from 0 on.")
    raise Refusal(409, f"Desktop {desktop} is not leased, so there is nothing to watch; ask again when somebody plays.")


def _frame(frame: bytes) -> Response:
    return Response(frame, media_type=FRAME_TYPE)
