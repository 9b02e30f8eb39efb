"""desktop-env on a machine of ours: the same class, set-up steps, getters and metrics, with failures told apart.

What is changed: the provider (there is one machine, and it runs); set-up steps are checked one by one, because
desktop-env logs most failures and goes on; every request has a deadline; a file that is not there is asked for once
instead of three times with 5 s in between; what the guest answers is watched, so that a lost desktop is never judged.

What it cannot see: evidence is asked of the guest, where the agent has the same rights as the server that answers. An
agent that put itself in that server's place could say what it likes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flywheel.datasets.needs import apps_of
from flywheel.envs.server.episodes.osworld_imports import import_desktop_env
from flywheel.envs.server.machines.base import Endpoints
from flywheel.errors import EnvError, EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Size, Task

REQUEST_SECONDS = 150.0
"""For requests that desktop-env gives no deadline; its in-VM server ends commands after 120 s."""
MOST_BYTES = 1 << 30
"""Of one answer; a guest could send without end."""
GONE = (502, 503, 504)
"""Answers of a guest server whose desktop is dead, and of gateways before it."""
TOLERATED = frozenset({"activate_window", "close_window"})
"""Set-up steps whose failure leaves a task as it is: titles differ between versions of an application."""
SETTLE_SECONDS = {"chrome": 3.0}
"""From the last action to the evaluation; Chromium writes its bookmarks 2.5 s late."""


@dataclass(slots=True)
class Watch:
    """What the guest answered since it was last cleared."""

    server: str
    others: tuple[str, ...] = ()
    lost: str | None = None
    refused: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    ended: list[Mapping[str, Any]] = field(default_factory=list)

    def clear(self) -> None:
        self.lost = None
        self.refused, self.missing, self.ended = [], [], []

    def install(self) -> None:
        """Look at every request of this process from now on; a later watch replaces this one."""
        import requests

        original = getattr(requests.Session.request, "unwatched", requests.Session.request)

        def request(session: Any, method: str, url: str, **options: Any) -> Any:
            if options.get("timeout") is None:
                options["timeout"] = REQUEST_SECONDS
            if not url.startswith((self.server, *self.others)):
                return original(session, method, url, **options)
            # The guest belongs to the agent: it must not send the evaluator to the host's own servers.
            options["allow_redirects"] = False
            if not url.startswith(self.server):
                return original(session, method, url, **options)
            try:
                response = original(session, method, url, **options | {"stream": True})
                response._content = _read(response)
            except requests.RequestException as error:
                self.lost = self.lost or f"{urlsplit(url).path}: {type(error).__name__}"
                raise
            self._note(urlsplit(url).path, options, response)
            return response

        request.unwatched = original  # type: ignore[attr-defined]
        setattr(requests.Session, "request", request)  # noqa: B010 (to type checkers a method is no variable)

    def _note(self, path: str, options: Mapping[str, Any], response: Any) -> None:
        if response.status_code in GONE:
            self.lost = self.lost or f"{path} answered {response.status_code}"
        elif path == "/file" and response.status_code == 404:
            self.missing.append(str((options.get("data") or {}).get("file_path")))
        elif response.status_code >= 300:
            self.refused.append(f"{path} answered {response.status_code}: {' '.join(response.text.split())[:200]}")
        elif path in ("/setup/execute", "/execute"):
            try:
                self.ended.append(dict(response.json()))
            except ValueError:
                self.refused.append(f"{path} answered no JSON")


def _read(response: Any) -> bytes:
    import requests

    parts, size = [], 0
    for part in response.iter_content(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise requests.exceptions.ContentDecodingError(f"more than {MOST_BYTES} bytes")
    return b"".join(parts)


class Judge:
    """One task on one machine: set up, told of actions, evaluated once."""

    def __init__(
        self, task: Task, endpoints: Endpoints, screen: Size, platform: str, cache: Path, rest: Callable[[], None]
    ) -> None:
        """`cache` is this rollout's own, its folder of the task filled; `rest` waits until the guest is idle."""
        self._task, self._rest = task, rest
        where = [f"http://{endpoints.host}:{port}/" for port in (endpoints.server, endpoints.chromium, endpoints.vlc)]
        self._watch = Watch(where[0], tuple(where[1:]))
        self._env = _desktop_env(endpoints, screen, platform, cache, self._watch, rest)
        self._last_action = time.monotonic()

    def set_up(self) -> None:
        """Raises `SetupError` naming the step, or `InfrastructureError` when the guest is lost."""
        self._watch.install()
        config = {
            "id": self._task.id,
            "instruction": self._task.instruction,
            "config": [dict(step) for step in self._task.config],
            "evaluator": dict(self._task.evaluator),
        }
        try:
            self._env.reset(config)
        except EnvError:
            raise
        except Exception as error:
            raise SetupError(f"Task {self._task.id} cannot be set up: {_words(error)}.") from error

    def acted(self, action: str) -> None:
        """Tell the environment; "FAIL" and "DONE" are what evaluation looks for."""
        self._env.step(action, pause=0) if action in ("FAIL", "DONE") else self._env.action_history.append(action)
        self._last_action = time.monotonic()

    def evaluate(self) -> float:
        """The task's own score. Raises `EvaluatorError` or `InfrastructureError`; neither says anything of success."""
        self._watch.install()
        self._watch.clear()
        try:
            self._settle()
            score = self._env.evaluate()
        except InfrastructureError:
            raise
        except Exception as error:
            self._refuse_lost()
            if self._watch.missing:  # the file that the agent was to make is not there, and the metric tripped over it
                return 0.0
            func = self._task.evaluator.get("func")
            raise EvaluatorError(f"The checker {func} of task {self._task.id} failed: {_words(error)}.") from error
        self._refuse_lost()
        if score is None:
            raise EvaluatorError(f"The checker of task {self._task.id} gave no score.")
        return float(score)

    def _settle(self) -> None:
        if self._task.infeasible or self._env.action_history[-1:] == ["FAIL"]:
            return  # what is judged is only what the agent said
        seconds = max((SETTLE_SECONDS.get(app, 0.0) for app in apps_of(self._task)), default=0.0)
        time.sleep(max(0.0, self._last_action + seconds - time.monotonic()))
        self._rest()

    def _refuse_lost(self) -> None:
        if self._watch.lost is not None:
            why = f"the desktop was lost ({self._watch.lost})"
            raise InfrastructureError(f"Task {self._task.id} was not judged, because {why}.")


def _desktop_env(
    endpoints: Endpoints, screen: Size, platform: str, cache: Path, watch: Watch, rest: Callable[[], None]
) -> Any:
    """A `DesktopEnv` whose provider is our machine."""
    module = import_desktop_env()
    controller, setup, env = _classes(module, watch, rest)
    module.PythonController, module.SetupController = controller, setup
    module.create_vm_manager_and_provider = lambda *_, **__: (_Manager(), _Provider(endpoints))
    return env(
        provider_name="docker",  # any known name; the provider is ours
        action_space="pyautogui",
        cache_dir=str(cache),
        screen_size=tuple(screen),
        headless=True,
        require_a11y_tree=False,
        os_type="Windows" if platform == "windows" else "Ubuntu",
        client_password="password",
    )


class _Manager:
    def get_vm_path(self, **_: Any) -> str:
        return "machine"


class _Provider:
    """The machine runs, and is reverted by the episode; desktop-env only asks where it is."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def start_emulator(self, *_: Any) -> None: ...

    def stop_emulator(self, *_: Any) -> None: ...

    def get_ip_address(self, _: str) -> str:
        where = self._endpoints
        return f"{where.host}:{where.server}:{where.chromium}:{where.vnc}:{where.vlc}"


def _classes(module: Any, watch: Watch, rest: Callable[[], None]) -> tuple[type, type, type]:
    """Subclasses of desktop-env's controllers and environment; made here because desktop-env is imported late."""
    from desktop_env.controllers.python import PythonController
    from desktop_env.controllers.setup import SetupController

    class Controller(PythonController):  # type: ignore[misc]
        _platform: str | None = None

        def get_file(self, file_path: str) -> bytes | None:
            import requests

            try:
                response = requests.post(f"{self.http_server}/file", data={"file_path": file_path})
            except requests.RequestException:
                return None  # the watch has noted it
            return bytes(response.content) if response.status_code == 200 else None

        def get_vm_platform(self) -> str:
            if self._platform is None:
                self._platform = str(super().get_vm_platform())
            return self._platform

    class Setup(SetupController):  # type: ignore[misc]
        checked = True

        def setup(self, config: list[dict[str, Any]], use_proxy: bool = False) -> bool:
            self.use_proxy = use_proxy
            for number, step in enumerate(config, 1):
                _set_up_step(self, number, step, watch)
                if _ends_something(step):
                    rest()  # a browser that is still writing its profile would answer the launch that follows
            if config:
                rest()  # what was started is ready for the agent, what was saved is on the disk for the checker
            self.checked = False  # what comes after is the evaluator's, on a desktop that the agent has used
            return True

    class Env(module.DesktopEnv):  # type: ignore[misc, name-defined]
        def _get_obs(self) -> dict[str, Any]:
            """Observations do not go this way."""
            return {"instruction": self.instruction}

    return Controller, Setup, Env


def _set_up_step(controller: Any, number: int, step: Mapping[str, Any], watch: Watch) -> None:
    """One step. Before the episode any failure is a `SetupError`; before evaluation only what desktop-env raises."""
    watch.clear()
    what = f"Set-up step {number} ({step['type']})"
    try:
        getattr(controller, f"_{step['type']}_setup")(**step["parameters"])
    except Exception as error:
        if watch.lost is None:
            raise SetupError(f"{what} failed: {_words(error)}.") from error
    if watch.lost is not None:
        raise InfrastructureError(f"The desktop was lost in {what[0].lower()}{what[1:]} ({watch.lost}).")
    if not controller.checked or step["type"] in TOLERATED:
        return
    if watch.refused:
        raise SetupError(f"{what} failed: {watch.refused[0]}.")
    for ended in watch.ended:
        if ended.get("status") == "error" or ended.get("returncode") in (126, 127):
            said = " ".join(str(ended.get("error") or ended.get("message") or ended.get("output")).split())
            raise SetupError(f"{what} ended with status {ended.get('returncode')}: {said[-200:]}.")


def _ends_something(step: Mapping[str, Any]) -> bool:
    command = step["parameters"].get("command") or ""
    words = command.split() if isinstance(command, str) else command
    return words[:1] in (["pkill"], ["killall"], ["kill"])


def _words(error: BaseException) -> str:
    """On one line, without the full stop."""
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:300].rstrip(".")
