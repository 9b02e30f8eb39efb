"""What every environment must keep, whatever its back end.

Another back end joins by an entry in `BACKENDS`; what needs more than a test machine has carries a mark there.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from flywheel.datasets.task_files import task_from_json
from flywheel.envs.base import Env
from flywheel.envs.pool import remote_env
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.oracle import plan
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import EnvError, EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Action, Click, Code, Done, Size, Task, Type, Wait
from tests.datasets.test_osworld import made
from tests.envs.server.episodes.working import needs_desktops
from tests.envs.server.machines.qemu_guests import needs_qemu
from tests.envs.server.serving import Served

SCREEN = Size(160, 128)


@dataclass(frozen=True)
class Backend:
    """How to open a desktop, a task with its solution, an infeasible task, and one that must be refused.

    `still` says that the same state always has the same pixels.
    """

    open: Callable[[], Env]
    task: Task
    solution: list[Action]
    infeasible: Task
    refused: Task
    still: bool = True


def _simulated(open_env: Callable[[], Env], layout: str = "roomy") -> Backend:
    feasible, infeasible = generate_tasks(
        split="heldout", count=2, seed=5, screen=SCREEN, layout=layout, families=("menu", "infeasible"), levels=(2,)
    )
    return Backend(
        open=open_env,
        task=feasible,
        solution=[step.action for step in plan(SimulatedDesktop(), feasible)],
        infeasible=infeasible,
        refused=Task("elsewhere", "Rename it", "os", platform="ubuntu"),
    )


def _over_http(request: pytest.FixtureRequest) -> Backend:
    served: Served = request.getfixturevalue("served")
    return _simulated(lambda: remote_env(served.url))


def _console_over_http(request: pytest.FixtureRequest) -> Backend:
    served: Served = request.getfixturevalue("served_console")
    file = {"type": "guest_file", "path": "/home/user/out.txt"}
    judge = {"func": "exact_match", "result": file, "expected": {"text": "hello"}}
    return Backend(
        open=lambda: remote_env(served.url),
        task=Task("hello", "Write hello into out.txt.", "console", evaluator=judge, platform="linux"),
        solution=[Type("echo hello > out.txt\n"), Done()],
        infeasible=Task("fly", "Fly.", "console", evaluator={"func": "infeasible"}, platform="linux", infeasible=True),
        refused=Task("elsewhere", "Rename it", "os", platform="windows"),
        still=False,  # the cursor blinks
    )


def _osworld_over_http(request: pytest.FixtureRequest) -> Backend:
    served: Served = request.getfixturevalue("served_xvfb")
    infeasible = made(id="fly", instruction="Fly.", evaluator={"func": "infeasible"})
    return Backend(
        open=lambda: remote_env(served.url),
        task=task_from_json(made()),
        solution=[Code("mkdir ~/Desktop/work", "bash"), Done()],
        infeasible=task_from_json(infeasible),
        refused=Task("elsewhere", "Rename it", "os", platform="windows"),
    )


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], Backend]] = {
    "simulated": lambda _: _simulated(lambda: SimulatedEnv(SCREEN)),
    "simulated-free": lambda _: _simulated(lambda: SimulatedEnv(SCREEN, "free"), "free"),
    "simulated-http": _over_http,
    "qemu-http": _console_over_http,
    "xvfb-http": _osworld_over_http,
}
MARKS: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "qemu-http": (needs_qemu, pytest.mark.desktop),
    "xvfb-http": (needs_desktops,),
}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in BACKENDS])
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param](request)


def _with(env: Env, episode: Callable[[Env], Awaitable[object]]) -> object:
    """What an episode returns; the desktop is closed on every path."""

    async def play() -> object:
        try:
            return await episode(env)
        finally:
            await env.close()

    return asyncio.run(play())


def _play(env: Env, task: Task, actions: list[Action]) -> object:
    async def episode(env: Env) -> float:
        await env.reset(task)
        for action in actions:
            await env.step(action)
        return await env.evaluate()

    return _with(env, episode)


def test_capabilities_name_the_screen_that_is_shown(backend: Backend) -> None:
    async def episode(env: Env) -> None:
        observation = await env.reset(backend.task)
        assert observation.screenshot is not None
        assert observation.screenshot.size == env.capabilities.screen
        width, height = env.capabilities.screen
        assert observation.screenshot.array().shape == (height, width, 3)

    _with(backend.open(), episode)


def test_the_solution_scores_one_and_doing_nothing_scores_zero(backend: Backend) -> None:
    assert _play(backend.open(), backend.task, backend.solution) == 1.0
    assert _play(backend.open(), backend.task, []) == 0.0
    assert _play(backend.open(), backend.task, [Wait(0.0), Done()]) == 0.0


def test_saying_that_it_cannot_be_done_is_right_only_when_it_cannot(backend: Backend) -> None:
    assert _play(backend.open(), backend.infeasible, [Done("failure")]) == 1.0
    assert _play(backend.open(), backend.infeasible, [Done("success")]) == 0.0
    assert _play(backend.open(), backend.infeasible, []) == 0.0
    given_up = [*backend.solution[:-1], Done("failure")]
    assert _play(backend.open(), backend.task, given_up) == 0.0


def test_a_desktop_is_used_again_without_a_trace(backend: Backend) -> None:
    async def twice(env: Env) -> None:
        first = await env.reset(backend.task)
        for action in backend.solution:
            await env.step(action)
        assert await env.evaluate() == 1.0
        again = await env.reset(backend.task)
        assert not backend.still or again.screenshot == first.screenshot
        assert await env.evaluate() == 0.0

    _with(backend.open(), twice)


def test_an_episode_may_be_left_in_the_middle(backend: Backend) -> None:
    async def twice(env: Env) -> None:
        await env.reset(backend.task)
        for action in backend.solution[:-1]:
            await env.step(action)
        await env.reset(backend.task)
        assert await env.evaluate() == 0.0

    _with(backend.open(), twice)


def test_terminal_actions_end_the_episode(backend: Backend) -> None:
    async def episode(env: Env) -> None:
        await env.reset(backend.task)
        assert not (await env.step(Wait(0.0))).done
        assert (await env.step(Done())).done
        late = await env.step(Wait(0.0))
        assert late.done
        assert not late.executed
        assert late.error

    _with(backend.open(), episode)


def test_an_action_that_cannot_be_executed_is_a_result(backend: Backend) -> None:
    async def episode(env: Env) -> None:
        before = await env.reset(backend.task)
        width, height = env.capabilities.screen
        result = await env.step(Click(width, 5))
        assert not result.executed
        assert not result.done
        assert result.error == f"The point ({width}, 5) is outside the {width} x {height} screen."
        assert not backend.still or result.observation.screenshot == before.screenshot

    _with(backend.open(), episode)


def test_an_episode_is_judged_once(backend: Backend) -> None:
    async def judge_twice(env: Env) -> None:
        await env.reset(backend.task)
        await env.evaluate()
        with pytest.raises(InfrastructureError):
            await env.step(Wait(0.0))
        await env.evaluate()

    with pytest.raises(EvaluatorError, match="once"):
        _with(backend.open(), judge_twice)


def test_nothing_works_before_reset_or_after_close(backend: Backend) -> None:
    async def fresh(env: Env) -> None:
        with pytest.raises(InfrastructureError):
            await env.step(Wait(0.0))
        with pytest.raises(EnvError):
            await env.evaluate()

    async def closed(env: Env) -> None:
        await env.reset(backend.task)
        await env.close()
        await env.close()
        await fresh(env)
        with pytest.raises(InfrastructureError, match="closed"):
            await env.reset(backend.task)

    _with(backend.open(), fresh)
    _with(backend.open(), closed)


def test_a_task_for_another_backend_is_refused_by_name(backend: Backend) -> None:
    with pytest.raises(SetupError, match=backend.refused.platform):
        _play(backend.open(), backend.refused, [])
