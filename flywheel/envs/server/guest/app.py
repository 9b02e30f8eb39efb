"""The guest server's ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from .desktop import Desktop
from .errors import RefusedError
from .files import FileRoutes
from .http import BodyLimit, on_bug, on_http, on_refused
from .native import NativeRoutes
from .osworld import OSWorldRoutes


def build_app(desktop: Desktop) -> Starlette:
    """Every endpoint of OSWorld's in-VM server, and flywheel's own under /v1."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        desktop.close()

    rooms = OSWorldRoutes(desktop), FileRoutes(), NativeRoutes(desktop)
    return Starlette(
        routes=[route for room in rooms for route in room.routes()],
        middleware=[Middleware(BodyLimit)],
        exception_handlers={RefusedError: on_refused, HTTPException: on_http, Exception: on_bug},
        lifespan=lifespan,
    )
