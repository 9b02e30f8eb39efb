"""Two older protocols, so that existing clients run unchanged.

The cookbook's bridge: `GET /health`, then POST `/reset /step /render /evaluate /close` with an `episode_id`. The
session bridge: `POST /envs`, then POST `/envs/ID/{reset,step,evaluate,close}` and `GET /envs/ID/obs`. Both answer with
`{screenshot_base64, accessibility_tree, terminal, instruction}` and say `{"error": ...}` when something fails.

They differ from their originals where those lose data. When all desktops are taken, a caller waits and is then told
429; a live episode is never evicted. A checker that fails is an error, not a reward of 0. DONE and FAIL reach the
desktop.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from flywheel.actions.computer_use import OPEN, ComputerUse
from flywheel.actions.pyautogui_script import read_script
from flywheel.actions.tool_arguments import read_arguments
from flywheel.envs.base import ObserveOptions
from flywheel.envs.server.leases import Lease, Refusal
from flywheel.envs.server.supervisor import Supervisor
from flywheel.envs.wire import decode_observation, decode_result, task_from_json
from flywheel.errors import ActionError
from flywheel.types import Action, Code, Observation, Size, Task

PATHS = ("/health", "/reset", "/step", "/render", "/evaluate", "/close", "/envs")
TREE_CHARS = 200_000
"""Of the accessibility tree; clients of the bridges cut it themselves."""


def is_bridge(request: Request) -> bool:
    """Whether a request is for one of the bridges."""
    path = request.url.path
    return path in PATHS or path.startswith("/envs/")


class _Loose(BaseModel):
    """Clients send more than is looked at."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class EnvConfig(_Loose):
    """Of what clients configure, what a running desktop can still heed; its screen is what it is."""

    require_a11y_tree: bool = True
    require_terminal: bool = False


class OpenRequest(_Loose):
    env_config: EnvConfig = EnvConfig()


class TaskRequest(OpenRequest):
    task_config: dict[str, Any] | str = Field(description="OSWorld's task, as an object or as JSON text")


class StepRequest(_Loose):
    action: str | dict[str, Any] = Field(description="pyautogui calls, a tool call, DONE, FAIL or WAIT")
    pause: float = Field(2.0, ge=0, le=60, description="seconds to let the screen settle")


class EpisodeRequest(_Loose):
    episode_id: str = Field(max_length=200)


class EpisodeStepRequest(StepRequest, EpisodeRequest):
    pass


class Bridges:
    """Both bridges over the leases of one supervisor.

    Args:
        ttl: seconds of silence after which an episode's desktop is taken back; these clients send no heartbeats.
        wait: seconds that a caller waits for a free desktop.
    """

    def __init__(self, ttl: float, wait: float) -> None:
        self._ttl, self._wait = ttl, wait
        self.router = APIRouter(tags=["bridges"])
        self.router.add_api_route("/health", self.health, methods=["GET"])
        for path in ("/reset", "/step", "/render", "/evaluate", "/close"):
            self.router.add_api_route(path, getattr(self, path[1:]), methods=["POST"])
        self.router.add_api_route("/envs", self.open_session, methods=["POST"])
        self.router.add_api_route("/envs/{session}/obs", self.observe_session, methods=["GET"])
        for name in ("reset", "step", "evaluate", "close"):
            path = f"/envs/{{session}}/{name}"
            self.router.add_api_route(path, getattr(self, f"{name}_session"), methods=["POST"])

    # --- the cookbook's ------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> dict[str, Any]:
        """How many episodes are live."""
        return {"status": "ok", "episodes": len(_pool(request).book)}

    async def reset(self, asked: TaskRequest, request: Request) -> dict[str, Any]:
        """A desktop with a task set up on it."""
        task = await _task(asked.task_config, request)
        lease = await self._open(request)
        try:
            seen = await _reset(lease, task, asked.env_config)
        except BaseException:
            lease.end("Its task could not be set up.")
            raise
        if await request.is_disconnected():
            lease.end("The client went away before its task was set up.")
        return {**seen, "episode_id": _name(lease)}

    async def step(self, asked: EpisodeStepRequest, request: Request) -> dict[str, Any]:
        """One action."""
        return await _step(_find(request, asked.episode_id), asked)

    async def render(self, asked: EpisodeRequest, request: Request) -> dict[str, Any]:
        """The screen as it is."""
        lease = _find(request, asked.episode_id)
        return _seen(decode_observation(await lease.observe()), lease)

    async def evaluate(self, asked: EpisodeRequest, request: Request) -> dict[str, Any]:
        """The task's checker, once; the same answer afterwards."""
        return {"reward": await _find(request, asked.episode_id).evaluate()}

    async def close(self, asked: EpisodeRequest, request: Request) -> dict[str, Any]:
        """Give the desktop back."""
        _find(request, asked.episode_id).end("The episode was closed.")
        return {"status": "closed", "episode_id": asked.episode_id}

    # --- the session bridge --------------------------------------------------------------------------------------

    async def open_session(self, request: Request, asked: OpenRequest | None = None) -> dict[str, Any]:
        """A desktop for any number of episodes, one after the other."""
        lease = await self._open(request)
        return {"session_id": _name(lease)}

    async def reset_session(self, session: str, asked: TaskRequest, request: Request) -> dict[str, Any]:
        """Set a task up on a clean desktop."""
        return await _reset(_find(request, session), await _task(asked.task_config, request), asked.env_config)

    async def step_session(self, session: str, asked: StepRequest, request: Request) -> dict[str, Any]:
        """One action."""
        return await _step(_find(request, session), asked)

    async def observe_session(self, session: str, request: Request) -> dict[str, Any]:
        """The screen as it is."""
        lease = _find(request, session)
        return _seen(decode_observation(await lease.observe()), lease)

    async def evaluate_session(self, session: str, request: Request) -> dict[str, Any]:
        """The task's checker, once an episode; the same answer afterwards."""
        return {"reward": await _find(request, session).evaluate()}

    async def close_session(self, session: str, request: Request) -> dict[str, Any]:
        """Give the desktop back."""
        _find(request, session).end("The session was closed.")
        return {"status": "closed", "session_id": session}

    async def _open(self, request: Request) -> Lease:
        await _pool(request).capabilities()
        client = request.client.host if request.client is not None else ""
        lease = await _pool(request).lease(client=f"bridge {client}", ttl=self._ttl, wait=self._wait)
        if await request.is_disconnected():
            lease.end("The client went away before it got its desktop.")
        lease.touch()
        return lease


def read_action(said: str | Mapping[str, Any], screen: Size, *, code: bool) -> Action:
    """What a client of the bridges says, as an action; coordinates of pyautogui are pixels, of a tool call a grid's.

    Args:
        said: pyautogui calls, DONE, FAIL, WAIT, any text that an older reader knows, a tool call or its arguments.
        screen: size in pixels.
        code: whether scripts that are no single action may run in the guest, as the original runs all of them.

    Raises:
        ActionError: it can neither be read nor run.
    """
    if isinstance(said, Mapping):
        arguments = said.get("arguments", said)
        if not isinstance(arguments, Mapping) or "action" not in arguments:
            raise ActionError(
                "An action that is an object holds the arguments of computer_use, e.g. {'action': 'wait'}."
            )
        return read_arguments(dict(arguments), screen)[0]
    if OPEN not in said:
        try:
            return read_script(said, screen)
        except ActionError as error:
            problem = str(error)
    parsed = ComputerUse().parse(said, screen)
    if parsed.action is not None:
        return parsed.action
    if OPEN in said or parsed.format:
        raise ActionError(parsed.error or "The action cannot be read.")
    if code:
        return Code(said, "python")
    raise ActionError(problem)


async def _reset(lease: Lease, task: Task, config: EnvConfig) -> dict[str, Any]:
    options = ObserveOptions(
        accessibility=config.require_a11y_tree, accessibility_chars=TREE_CHARS, terminal=config.require_terminal
    )
    return _seen(decode_observation(await lease.reset(task, options)), lease)


async def _step(lease: Lease, asked: StepRequest) -> dict[str, Any]:
    info: dict[str, Any] = {}
    done = False
    try:
        spaces = lease.capabilities.action_spaces
        action = read_action(asked.action, lease.capabilities.screen, code="code" in spaces)
    except ActionError as error:
        seen = decode_observation(await lease.observe())
        info = {"executed": False, "error": str(error)}
    else:
        result = decode_result(await lease.step(None, action, asked.pause))
        seen, done = result.observation, result.done
        info = {"executed": result.executed} | ({"error": result.error} if result.error else {})
    return {**_seen(seen, lease), "reward": 0.0, "done": done, "step": lease.steps, "info": info}


def _seen(observation: Observation, lease: Lease) -> dict[str, Any]:
    """Texts are never null: clients take their length."""
    shot = observation.screenshot
    return {
        **({"screenshot_base64": base64.b64encode(shot.data).decode("ascii")} if shot is not None else {}),
        "accessibility_tree": observation.accessibility_tree or "",
        "terminal": observation.terminal or "",
        "instruction": lease.task.instruction if lease.task is not None else "",
    }


async def _task(config: dict[str, Any] | str, request: Request) -> Task:
    """OSWorld's JSON as a task of this server's platform. Raises `Refusal`, `TaskError`."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, "task_config is text that is not JSON.") from error
    if not isinstance(config, dict):
        raise Refusal(400, "task_config must be OSWorld's task: an object with id, instruction, config and evaluator.")
    offered = await _pool(request).capabilities()
    evaluator = config.get("evaluator") or {}
    return task_from_json(
        {
            "id": config.get("id") or config.get("task_id") or "task",
            "instruction": config.get("instruction") or "",
            "domain": config.get("domain") or config.get("snapshot") or "",
            "config": config.get("config") or [],
            "evaluator": evaluator,
            "infeasible": isinstance(evaluator, dict) and evaluator.get("func") == "infeasible",
            "platform": config.get("platform") or offered.platform,
            "raw": config,
        }
    )


def _pool(request: Request) -> Supervisor:
    supervisor: Supervisor = request.app.state.supervisor
    return supervisor


def _name(lease: Lease) -> str:
    """What the client calls it: these protocols have no secrets, so the name holds it."""
    return f"{lease.id}.{lease.secret}"


def _find(request: Request, name: str) -> Lease:
    id, _, secret = name.partition(".")
    try:
        lease = _pool(request).book.find(id, secret)
    except Refusal as refusal:
        raise Refusal(404, "There is no such episode.") from refusal
    if lease.over is not None:
        raise Refusal(500 if lease.kind == "infrastructure" else 404, f"The episode is over: {lease.over}")
    return lease
