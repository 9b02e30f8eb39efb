"""The guest as an agent uses it: actions, code, screenshots, accessibility, terminal, over one kept connection.

A guest server of ours answers under /v1. A stock OSWorld server knows nothing of that: there, actions are pyautogui
text for `/execute`, screenshots are PNG, and both take a fresh interpreter each.
"""

import http.client
import io
import json
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from PIL import Image

from flywheel.actions.pyautogui_script import write_script
from flywheel.envs.base import ObserveOptions
from flywheel.envs.server.machines.base import Endpoints
from flywheel.envs.wire import action_to_json
from flywheel.errors import ActionError, InfrastructureError
from flywheel.types import Action, Code, Observation, Screenshot, Size

SECONDS = 60.0
"""For one answer; code may take half of it."""
CODE_SECONDS = 30.0
KEEP_SECONDS = 2.0
"""A connection that was idle for longer is made anew, because uvicorn hangs up after 5 s."""
MOST_BYTES = 64 << 20
"""An answer larger than this is no screenshot and no text; whoever sent it is no guest server of ours."""
MOST_OUTPUT = 8192
"""Characters of what code printed that go into the observation."""
REST_LOOKS = 4
"""So many looks in a row, 0.1 s apart, must find the guest idle; a blinking cursor is seen in one of a hundred."""
_PYAUTOGUI = "import pyautogui; import time; pyautogui.FAILSAFE = False\n"

_REST = """
import os, time
ours = {str(os.getpid()), str(os.getppid())}
def busy():
    for pid in os.listdir('/proc'):
        if pid.isdigit() and pid not in ours:
            try:
                for thread in os.listdir('/proc/%s/task' % pid):
                    with open('/proc/%s/task/%s/stat' % (pid, thread)) as stat:
                        if stat.read().rpartition(')')[2].split()[0] in 'RD':
                            return True
            except OSError:
                pass
    return False
until, quiet = time.time() + SECONDS, 0
while quiet < LOOKS and time.time() < until:
    quiet = 0 if busy() else quiet + 1
    time.sleep(0.1)
"""


class Guest:
    """One guest server. Every method raises `InfrastructureError` when it does not answer as it should."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._where = (endpoints.host, endpoints.server)
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0
        self.native = self._ask("GET", "/v1/health")[0] == 200
        self.screen = self._screen()

    def act(self, action: Action) -> str | None:
        """None when it was executed, else a sentence on why not."""
        if self.native:
            status, answer = self._json("/v1/action", action_to_json(action))
            if status in (400, 422):
                return str(answer.get("message") or "The desktop refused the action.")
            self._well("/v1/action", status)
            return None
        try:
            script = write_script(action, self.screen)
        except ActionError as error:
            return str(error)
        status, answer = self._json("/execute", {"command": ["python", "-c", _PYAUTOGUI + script], "shell": False})
        self._well("/execute", status)
        return None if answer.get("returncode") == 0 else f"The action failed: {str(answer.get('error'))[-200:]}"

    def run(self, code: Code) -> str:
        """Run code inside the guest; what it printed and how it ended, cut."""
        if self.native:
            told = {"code": code.code, "language": code.language, "timeout": CODE_SECONDS}
            status, answer = self._json("/v1/code", told)
        elif code.language == "python":
            status, answer = self._json("/run_python", {"code": code.code})
        else:
            status, answer = self._json("/run_bash_script", {"script": code.code, "timeout": CODE_SECONDS})
        if status in (400, 422):
            return str(answer.get("message"))
        if self.native:
            self._well("/v1/code", status)
        printed = "\n".join(str(answer[key]) for key in ("output", "error") if answer.get(key))
        ended = answer.get("returncode", answer.get("return_code"))
        return f"{printed[-MOST_OUTPUT:]}\n[return code {ended}]".lstrip()

    def screenshot(self, options: ObserveOptions) -> Screenshot:
        """In the codec that is asked for; "raw" comes as PNG."""
        codec = "png" if options.image == "raw" else options.image
        path = f"/v1/screenshot?format={codec}&quality={options.quality}" if self.native else "/screenshot"
        status, data = self._ask("GET", path)
        self._well(path, status)
        try:
            with Image.open(io.BytesIO(data)) as image:
                if not self.native and codec != "png":
                    data = _encoded(image, codec, options.quality)
                return Screenshot(data, image.width, image.height, codec)
        except (OSError, ValueError) as error:
            raise InfrastructureError("The guest server sent a screenshot that is no image.") from error

    def observe(self, options: ObserveOptions, last_result: str | None, shot: Screenshot | None = None) -> Observation:
        """What the options ask for; text is cut. A screenshot that was taken already is not taken again."""
        tree = terminal = None
        if options.accessibility:
            path = f"/v1/accessibility?limit={options.accessibility_chars}" if self.native else "/accessibility"
            tree = self._text(path, "accessibility" if self.native else "AT")[: options.accessibility_chars]
        if options.terminal:
            native = ("/v1/terminal", "terminal")
            terminal = self._text(*native if self.native else ("/terminal", "output"))[-MOST_OUTPUT:]
        return Observation(shot or self.screenshot(options), tree, terminal, last_result)

    def rest(self, most: float) -> None:
        """Return when no thread of the guest wants the processor, after `most` seconds at the latest.

        An application that still loads or saves is not idle, however little a busy host lets it run.
        """
        script = _REST.replace("SECONDS", str(most)).replace("LOOKS", str(REST_LOOKS))
        status, _ = self._json("/execute", {"command": ["python3", "-c", script], "shell": False})
        self._well("/execute", status)

    def has_window(self) -> bool:
        """Whether a window is active; a stock server cannot tell, and says yes."""
        if not self.native:
            return True
        status, data = self._ask("GET", "/v1/window")
        self._well("/v1/window", status)
        return _object(data).get("window") is not None

    def programs(self, names: frozenset[str]) -> frozenset[str]:
        """Those of `names` that are on the guest's PATH, and `systemd` where it runs."""
        loop = f'for p in {" ".join(sorted(names - {"systemd"}))}; do command -v "$p" >/dev/null && echo "$p"; done'
        loop += "; [ -d /run/systemd/system ] && echo systemd; true"
        status, answer = self._json("/execute", {"command": loop, "shell": True})
        self._well("/execute", status)
        return names.intersection(str(answer.get("output")).split())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _screen(self) -> Size:
        status, answer = self._json("/screen_size", {})
        self._well("/screen_size", status)
        return Size(int(answer["width"]), int(answer["height"]))

    def _text(self, path: str, key: str) -> str:
        status, data = self._ask("GET", path)
        self._well(path, status)
        return str(_object(data).get(key) or "")

    def _json(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        status, data = self._ask("POST", path, json.dumps(body).encode())
        return status, _object(data)

    def _well(self, path: str, status: int) -> None:
        if status != 200:
            name = urllib.parse.urlsplit(path).path
            raise InfrastructureError(f"The guest server answered {name} with status {status}; the desktop is lost.")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Only a look is repeated on a fresh connection: an action may have happened before its answer was lost."""
        headers = {"Content-Type": "application/json"} if body else {}
        if time.monotonic() - self._used > KEEP_SECONDS:
            self.close()
        kept = self._connection is not None
        try:
            return self._once(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not (kept and method == "GET" and not isinstance(error, TimeoutError)):
                raise _lost(error) from error
        try:
            return self._once(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _lost(error) from error

    def _once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._where, timeout=SECONDS)
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        data = response.read(MOST_BYTES + 1)
        self._used = time.monotonic()
        if len(data) > MOST_BYTES:
            raise http.client.HTTPException(f"more than {MOST_BYTES} bytes")
        return response.status, data


def _lost(error: Exception) -> InfrastructureError:
    why = str(error) or type(error).__name__
    return InfrastructureError(f"The guest server does not answer ({why}); the desktop is lost.")


def _object(data: bytes) -> dict[str, Any]:
    """The JSON object of an answer; what is none is an empty one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _encoded(image: Image.Image, codec: str, quality: int) -> bytes:
    out = io.BytesIO()
    if codec == "jpeg":
        image.convert("RGB").save(out, "JPEG", quality=quality)
    else:
        image.convert("RGB").save(out, "WEBP", lossless=True, quality=0, method=0)
    return out.getvalue()
