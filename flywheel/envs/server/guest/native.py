"""flywheel's own endpoints, under /v1. Refusals are JSON with `message`; see `http.refusal`."""

import base64
import contextlib
import os
import sys
import tempfile
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .accessibility import Node, marked, outline, seen_nodes
from .actions import read_action
from .children import OUTPUT_LIMIT, Outcome
from .desktop import Desktop
from .errors import DesktopGoneError, RefusedError
from .http import Fields, patient, threaded, whole
from .marks import draw_marks
from .screen import MEDIA_TYPES, encode

VERSION = 1
ACCESSIBILITY_CHARACTERS, MOST_CHARACTERS = 4096, 4_000_000
CODE_SECONDS, MOST_SECONDS = 30.0, 600.0
MOST_MARKS = 300
_SUFFIXES = {"python": ".py", "bash": ".sh"}


def run_code(
    desktop: Desktop, code: str, language: str, seconds: float, cwd: str = "", *, merge: bool = False
) -> Outcome:
    """Code of an agent, out of a file, in a child. Raises `RefusedError` when it cannot be started."""
    interpreter = sys.executable if language == "python" else "/bin/bash"
    name = ""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=_SUFFIXES[language], delete=False) as file:
            name = file.name
            file.write(code)
        return desktop.children.run([interpreter, name], seconds, merge=merge, cwd=cwd)
    except OSError as error:
        raise RefusedError(f"The code could not be started: {error.strerror}.", 500) from error
    finally:
        with contextlib.suppress(OSError):  # the code may have removed it
            os.remove(name)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """`status` is "success" when the child ended by itself, whatever its return code, or is an app that runs on."""
    told: dict[str, Any] = {
        "status": "error" if outcome.timed_out else "success",
        "output": outcome.output,
        "error": outcome.error,
        "returncode": outcome.returncode,
    }
    if outcome.timed_out:
        told["message"] = "The command was killed, because it took too long."
    if outcome.detached:
        told["message"] = "The command shows a window and was left running."
    if max(len(outcome.output), len(outcome.error)) >= OUTPUT_LIMIT:
        told["truncated"] = True
    return told


class NativeRoutes:
    """The handlers, over one desktop."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop

    def routes(self) -> list[Route]:
        return [
            Route("/v1/health", self.health),
            Route("/v1/screenshot", self.screenshot),
            Route("/v1/marks", self.marks),
            Route("/v1/accessibility", self.accessibility),
            Route("/v1/terminal", self.terminal),
            Route("/v1/window", self.window),
            Route("/v1/action", self.action, methods=["POST"]),
            Route("/v1/code", self.code, methods=["POST"]),
        ]

    async def health(self, request: Request) -> Response:
        """200 when the X server answers, 503 otherwise."""
        await threaded(self._desktop.windows.ping)
        return JSONResponse({"ok": True, "display": self._desktop.display, "version": VERSION})

    async def screenshot(self, request: Request) -> Response:
        codec = request.query_params.get("format", "png")
        quality = whole(request, "quality", 85, 100)
        data = await threaded(lambda: encode(self._desktop.screen.image(), codec, quality))
        return Response(data, media_type=MEDIA_TYPES[codec])

    async def marks(self, request: Request) -> Response:
        """The screenshot with numbered boxes, base64, and the legend of the numbers."""
        codec = request.query_params.get("format", "png")
        quality = whole(request, "quality", 85, 100)

        def work() -> dict[str, Any]:
            nodes = list(marked(self._seen()))[:MOST_MARKS]
            image = self._desktop.screen.image()
            legend = draw_marks(image, nodes)
            return {"image": base64.b64encode(encode(image, codec, quality)).decode(), "marks": legend}

        return JSONResponse(await threaded(work, limiter=patient))

    async def accessibility(self, request: Request) -> Response:
        """What is seen, one line an element, at most `limit` characters."""
        limit = whole(request, "limit", ACCESSIBILITY_CHARACTERS, MOST_CHARACTERS)

        def work() -> dict[str, Any]:
            nodes = self._seen()
            return {"accessibility": outline(nodes, limit), "elements": len(nodes)}

        return JSONResponse(await threaded(work, limiter=patient))

    async def terminal(self, request: Request) -> Response:
        """The text of the terminal in the active window; null when there is none, or it does not answer."""

        def work() -> str | None:
            with contextlib.suppress(DesktopGoneError):
                return self._desktop.accessibility.terminal()
            return None

        return JSONResponse({"terminal": await threaded(work, limiter=patient)})

    async def window(self, request: Request) -> Response:
        """The active window, or null."""
        window = await threaded(self._desktop.windows.active)
        told = None if window is None else {"id": window.id, "title": window.title, "classes": list(window.classes)}
        return JSONResponse({"window": told})

    async def action(self, request: Request) -> Response:
        """One action in wire form. 400 malformed, 422 not executable here; `code` answers as /v1/code does."""
        fields = await Fields.of(request)
        if fields.values.get("type") == "code":
            return await self._run(fields)
        screen = await threaded(self._desktop.hand.screen)
        await threaded(self._desktop.hand.play, read_action(fields.values, screen), limiter=patient)
        return JSONResponse({"status": "success"})

    async def code(self, request: Request) -> Response:
        return await self._run(await Fields.of(request))

    def _seen(self) -> list[Node]:
        """Nothing while the bus does not answer: GIMP holds it up for longer than the deadline when it starts, and the
        desktop is well. OSWorld's endpoint says 503 then, because evaluators must not judge an empty tree."""
        screen = self._desktop.hand.screen()
        try:
            return seen_nodes(self._desktop.accessibility.xml(seen=True), screen)
        except DesktopGoneError:
            return []

    async def _run(self, fields: Fields) -> Response:
        language = fields.text("language", "python")
        if language not in _SUFFIXES:
            raise RefusedError(f"There is no language {language[:20]!r} here; use {' or '.join(_SUFFIXES)}.")
        seconds = fields.seconds("timeout", CODE_SECONDS, MOST_SECONDS)
        work = run_code, self._desktop, fields.text("code"), language, seconds
        return JSONResponse(outcome_json(await threaded(*work, limiter=patient)))
