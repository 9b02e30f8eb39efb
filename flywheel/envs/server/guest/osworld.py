"""The endpoints of OSWorld's in-VM server: commands, windows, looks. Request and response shapes are OSWorld's.

Where they differ from the original: pyautogui scripts are performed here instead of in a new interpreter, a command
that shows a window is left running, one that hangs answers 200 with return code 124, because a 500 would make
OSWorld's controller run it again, and /setup/open_file gives up after 120 s instead of 1800.
"""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from .children import Outcome, command_line
from .desktop import Desktop
from .errors import DesktopGoneError, RefusedError
from .files import existing, expanded
from .http import Fields, patient, printable, text, threaded
from .native import MOST_SECONDS, outcome_json, run_code
from .screen import encode
from .script import read_script
from .windows import Window

EXECUTE_SECONDS, PYTHON_SECONDS = 120.0, 80.0
"""OSWorld's own limit, and that of `python -c`, whose client waits 90 s."""
RUN_PYTHON_SECONDS, BASH_SECONDS, VERIFY_SECONDS = 30.0, 100.0, 5.0
OPEN_SECONDS = 120.0
APPEAR_SECONDS = 3.0
"""How long a window to activate or close may take to appear; its app was launched without waiting for it."""
_PYTHONS = frozenset({"python", "python3", "/usr/bin/python", "/usr/bin/python3"})
_WALLPAPER = ("org.gnome.desktop.background", "picture-uri")


class OSWorldRoutes:
    """The handlers, over one desktop."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop

    def routes(self) -> list[Route]:
        get = {
            "/screenshot": self.screenshot,
            "/accessibility": self.accessibility,
            "/terminal": self.terminal,
            "/platform": self.platform,
            "/cursor_position": self.cursor_position,
        }
        post = {
            "/execute": self.execute,
            "/setup/execute": self.execute,
            "/execute_with_verification": self.execute_with_verification,
            "/setup/execute_with_verification": self.execute_with_verification,
            "/run_python": self.run_python,
            "/run_bash_script": self.run_bash_script,
            "/screen_size": self.screen_size,
            "/window_size": self.window_size,
            "/wallpaper": self.wallpaper,
            "/start_recording": self.start_recording,
            "/end_recording": self.end_recording,
            "/setup/launch": self.launch,
            "/setup/open_file": self.open_file,
            "/setup/activate_window": self.activate_window,
            "/setup/close_window": self.close_window,
            "/setup/change_wallpaper": self.change_wallpaper,
        }
        return [
            *(Route(path, handler) for path, handler in get.items()),
            *(Route(path, handler, methods=["POST"]) for path, handler in post.items()),
        ]

    # --- looks -------------------------------------------------------------------------------------------

    async def screenshot(self, request: Request) -> Response:
        data = await threaded(lambda: encode(self._desktop.screen.image(), "png"))
        return Response(data, media_type="image/png")

    async def accessibility(self, request: Request) -> Response:
        return JSONResponse({"AT": await threaded(self._desktop.accessibility.xml, limiter=patient)})

    async def terminal(self, request: Request) -> Response:
        """SetupController asks for this to see whether the machine is up, so a missing bus is no error here."""
        try:
            output = await threaded(self._desktop.accessibility.terminal, limiter=patient)
        except DesktopGoneError:
            output = None
        return JSONResponse({"output": output, "status": "success"})

    async def platform(self, request: Request) -> Response:
        return text(platform.system())

    async def cursor_position(self, request: Request) -> Response:
        return JSONResponse(list(await threaded(self._desktop.hand.position)))

    async def screen_size(self, request: Request) -> Response:
        width, height = await threaded(self._desktop.hand.screen)
        return JSONResponse({"width": width, "height": height})

    async def window_size(self, request: Request) -> Response:
        async with request.form() as form:
            name = form.get("app_class_name")
        if not isinstance(name, str) or not name:
            raise RefusedError("app_class_name is required")
        size = await threaded(self._desktop.windows.size, name)
        if size is None:
            raise RefusedError(f"No window has the class {name[:80]!r}.", 404)
        return JSONResponse({"width": size[0], "height": size[1]})

    # --- commands ----------------------------------------------------------------------------------------

    async def execute(self, request: Request) -> Response:
        fields = await Fields.of(request)
        shell, command = _command(fields)
        seconds = fields.seconds("timeout", _seconds_for(command), MOST_SECONDS)
        return JSONResponse(outcome_json(await threaded(self._perform, command, shell, seconds, limiter=patient)))

    async def execute_with_verification(self, request: Request) -> Response:
        fields = await Fields.of(request)
        shell, command = _command(fields)
        wait, pause = fields.seconds("max_wait_time", 10.0, 3600.0), fields.seconds("check_interval", 1.0, 3600.0)
        verification = fields.mapping("verification")

        def work() -> tuple[dict[str, Any], int]:
            told = outcome_json(self._perform(command, shell, EXECUTE_SECONDS))
            if not verification:
                return told, 200
            started = time.monotonic()
            while (waited := time.monotonic() - started) < wait:
                if self._verified(verification):
                    return told | {"verification": "passed", "wait_time": waited}, 200
                time.sleep(pause)
            failed = {"status": "verification_failed", "verification": "failed", "wait_time": wait}
            return told | failed, 500

        body, status = await threaded(work, limiter=patient)
        return JSONResponse(body, status)

    async def run_python(self, request: Request) -> Response:
        code = (await Fields.of(request)).text("code")
        ended = await threaded(run_code, self._desktop, code, "python", RUN_PYTHON_SECONDS, limiter=patient)
        if ended.timed_out:
            message = "Execution timeout: Code took too long to execute"
            told = {"status": "error", "message": message, "error": "TimeoutExpired", "need_more": False}
            return JSONResponse(told | {"output": None}, 500)
        error = ended.error or (f"Process exited with code {ended.returncode}" if ended.returncode else "")
        return JSONResponse(
            {
                "status": "error" if ended.returncode else "success",
                "message": "\n".join(part for part in (ended.output, error) if part),
                "need_more": False,
                "output": ended.output,
                "error": error,
                "return_code": ended.returncode,
            }
        )

    async def run_bash_script(self, request: Request) -> Response:
        fields = await Fields.of(request)
        script = fields.text("script")
        seconds = fields.seconds("timeout", BASH_SECONDS, MOST_SECONDS)
        cwd = fields.text("working_dir", "")

        def work() -> Outcome:
            directory = os.path.expanduser(cwd)
            if cwd and not os.path.isdir(directory):
                raise RefusedError(f"Working directory does not exist: {cwd}")
            return run_code(self._desktop, script, "bash", seconds, directory, merge=True)

        ended = await threaded(work, limiter=patient)
        if ended.timed_out:
            output, code = f"Script execution timed out after {seconds:.0f} seconds", -1
        else:
            output, code = ended.output, ended.returncode
        status = "success" if code == 0 else "error"
        return JSONResponse({"status": status, "output": output, "error": "", "returncode": code})

    async def launch(self, request: Request) -> Response:
        shell, command = _command(await Fields.of(request))
        await threaded(self._launch, command, shell)
        words = command if isinstance(command, str) else " ".join(command)
        return text(f"{words} launched successfully")

    # --- windows -----------------------------------------------------------------------------------------

    async def open_file(self, request: Request) -> Response:
        """Waits for a window with the file's name in its title."""
        name = (await Fields.of(request)).text("path")
        path = expanded(name)
        if path.exists():
            command, words = ["xdg-open", str(path)], {path.name, path.stem}
        elif shutil.which(name):
            command, words = [name], {name}
        else:
            raise RefusedError(f"Application/file not found: {name}", 404)
        await threaded(self._launch, command, False)
        window = await threaded(self._await_window, words, limiter=patient)
        if window is None:
            raise RefusedError(f"Failed to find window for {path.name} within {OPEN_SECONDS:.0f} seconds.", 500)
        await threaded(self._desktop.windows.activate, window)
        return text("File opened and window activated successfully")

    async def activate_window(self, request: Request) -> Response:
        window = await self._window(request)
        await threaded(self._desktop.windows.activate, window)
        return text("Window activated successfully")

    async def close_window(self, request: Request) -> Response:
        window = await self._window(request)
        await threaded(self._desktop.windows.close, window)
        return text("Window closed successfully.")

    async def _window(self, request: Request) -> Window:
        fields = await Fields.of(request)
        name, strict, by_class = fields.text("window_name"), fields.flag("strict"), fields.flag("by_class")

        def work() -> Window:
            until = time.monotonic() + APPEAR_SECONDS
            while (window := self._desktop.windows.find(name, strict=strict, by_class=by_class)) is None:
                if time.monotonic() > until:
                    raise RefusedError(f"Window {name[:200]} not found", 404)
                time.sleep(0.1)
            return window

        return await threaded(work, limiter=patient)

    # --- wallpaper and recordings ------------------------------------------------------------------------

    async def wallpaper(self, request: Request) -> Response:
        def work() -> Path:
            told = self._settings("get", *_WALLPAPER)
            return existing(told.strip().strip("'").removeprefix("file://"))

        return FileResponse(await threaded(work), media_type="image/png")

    async def change_wallpaper(self, request: Request) -> Response:
        name = (await Fields.of(request)).text("path")
        await threaded(lambda: self._settings("set", *_WALLPAPER, f"file://{existing(name)}"))
        return text("Wallpaper changed successfully")

    async def start_recording(self, request: Request) -> Response:
        await threaded(lambda: self._desktop.recorder.start(self._desktop.hand.screen()), limiter=patient)
        return JSONResponse({"status": "success", "message": "Started recording successfully."})

    async def end_recording(self, request: Request) -> Response:
        path = await threaded(self._desktop.recorder.end, limiter=patient)
        return FileResponse(path, media_type="video/mp4", filename=os.path.basename(path))

    # --- on a thread -------------------------------------------------------------------------------------

    def _perform(self, command: Sequence[str] | str, shell: bool, seconds: float) -> Outcome:
        code = _python_code(command)
        if code is not None and not shell:
            strokes = read_script(code)
            if strokes is not None:
                self._desktop.hand.play(strokes)
                return Outcome("", "", 0)
        try:
            return self._desktop.children.run(_with_pyautogui(command), seconds, shell=shell)
        except OSError as error:
            raise RefusedError(str(error), 500) from error

    def _launch(self, command: Sequence[str] | str, shell: bool) -> None:
        try:
            self._desktop.children.launch(_with_pyautogui(command), shell=shell)
        except OSError as error:
            raise RefusedError(str(error), 500) from error

    def _verified(self, verification: dict[str, Any]) -> bool:
        title, command = verification.get("window_exists"), verification.get("command_success")
        if title is not None and self._desktop.windows.find(str(title)) is None:
            return False
        if command is None:
            return True
        shell = isinstance(command, str)
        return (
            self._desktop.children.run(command_line(command, shell=shell), VERIFY_SECONDS, shell=shell).returncode == 0
        )

    def _await_window(self, words: set[str]) -> Window | None:
        until = time.monotonic() + OPEN_SECONDS
        while time.monotonic() < until:
            for window in self._desktop.windows.all():
                if any(word in window.title for word in words):
                    return window
            time.sleep(0.1)
        return None

    def _settings(self, *words: str) -> str:
        try:
            return subprocess.run(["gsettings", *words], capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise RefusedError("This desktop keeps no wallpaper; gsettings does not answer.", 501) from error


def _command(fields: Fields) -> tuple[bool, Sequence[str] | str]:
    shell = fields.flag("shell")
    try:
        command = command_line(fields.values.get("command"), shell=shell)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    for word in [command] if isinstance(command, str) else command:
        printable(word, "The field `command`")
    return shell, command


def _python_code(command: Sequence[str] | str) -> str | None:
    """The code of `python -c CODE`."""
    if isinstance(command, str) or len(command) != 3 or command[0] not in _PYTHONS or command[1] != "-c":
        return None
    return command[2]


def _with_pyautogui(command: Sequence[str] | str) -> Sequence[str] | str:
    """`python` is the interpreter that runs this, because tasks and agents expect it to have pyautogui."""
    if not isinstance(command, str) and command[0] in ("python", "python3"):
        return [sys.executable, *command[1:]]
    return command


def _seconds_for(command: Sequence[str] | str) -> float:
    return EXECUTE_SECONDS if _python_code(command) is None else PYTHON_SECONDS
