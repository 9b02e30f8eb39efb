"""What every environment must keep, whatever its back end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from flywheel.envs.base import Env
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.oracle import plan
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import EnvError, EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Action, Click, Done, Size, Task, Wait

SCREEN = Size(160, 128)


@dataclass(frozen=True)
class Backend:
    """How to open a desktop, a task with its solution, an infeasible task, and one that must be refused."""

    open: Callable[[], Env]
    task: Task
    solution: list[Action]
    infeasible: Task
    refused: Task


def _simulated(layout: str) -> Backend:
    feasible, infeasible = generate_tasks(
        split="heldout", count=2, seed=5, screen=SCREEN, layout=layout, families=("menu", "infeasible"), levels=(2,)
    )
    return Backend(
        open=lambda: SimulatedEnv(SCREEN, layout),
        task=feasible,
        solution=[step.action for step in plan(SimulatedDesktop(), feasible)],
        infeasible=infeasible,
        refused=Task("elsewhere", "Rename it", "os", platform="ubuntu"),
    )


@pytest.fixture(params=["simulated", "simulated-free"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return _simulated("free" if request.param.endswith("free") else "roomy")


async def _play(env: Env, task: Task, actions: list[Action]) -> float:
    await env.reset(task)
    for action in actions:
        await env.step(action)
    return await env.evaluate()


def test_capabilities_name_the_screen_that_is_shown(backend: Backend) -> None:
    async def episode() -> None:
        env = backend.open()
        observation = await env.reset(backend.task)
        assert observation.screenshot is not None
        assert observation.screenshot.size == env.capabilities.screen
        assert observation.screenshot.array().shape == (SCREEN.height, SCREEN.width, 3)
        await env.close()

    asyncio.run(episode())


def test_the_solution_scores_one_and_doing_nothing_scores_zero(backend: Backend) -> None:
    assert asyncio.run(_play(backend.open(), backend.task, backend.solution)) == 1.0
    assert asyncio.run(_play(backend.open(), backend.task, [])) == 0.0
    assert asyncio.run(_play(backend.open(), backend.task, [Wait(0.0), Done()])) == 0.0


def test_saying_that_it_cannot_be_done_is_right_only_when_it_cannot(backend: Backend) -> None:
    assert asyncio.run(_play(backend.open(), backend.infeasible, [Done("failure")])) == 1.0
    assert asyncio.run(_play(backend.open(), backend.infeasible, [Done("success")])) == 0.0
    assert asyncio.run(_play(backend.open(), backend.infeasible, [])) == 0.0
    given_up = [*backend.solution[:-1], Done("failure")]
    assert asyncio.run(_play(backend.open(), backend.task, given_up)) == 0.0


def test_a_desktop_is_used_again_without_a_trace(backend: Backend) -> None:
    async def twice() -> None:
        env = backend.open()
        first = await env.reset(backend.task)
        for action in backend.solution:
            await env.step(action)
        assert await env.evaluate() == 1.0
        again = await env.reset(backend.task)
        assert again.screenshot == first.screenshot
        assert await env.evaluate() == 0.0
        await env.close()

    asyncio.run(twice())


def test_terminal_actions_end_the_episode(backend: Backend) -> None:
    async def episode() -> None:
        env = backend.open()
        await env.reset(backend.task)
        assert not (await env.step(Wait(0.0))).done
        assert (await env.step(Done())).done
        late = await env.step(Wait(0.0))
        assert late.done
        assert not late.executed
        assert late.error

    asyncio.run(episode())


def test_an_action_that_cannot_be_executed_is_a_result(backend: Backend) -> None:
    async def episode() -> None:
        env = backend.open()
        before = await env.reset(backend.task)
        result = await env.step(Click(SCREEN.width, 5))
        assert not result.executed
        assert not result.done
        assert result.error == "The point (160, 5) is outside the 160 x 128 screen."
        assert result.observation.screenshot == before.screenshot

    asyncio.run(episode())


def test_an_episode_is_judged_once(backend: Backend) -> None:
    async def judge_twice() -> None:
        env = backend.open()
        await env.reset(backend.task)
        await env.evaluate()
        with pytest.raises(InfrastructureError):
            await env.step(Wait(0.0))
        await env.evaluate()

    with pytest.raises(EvaluatorError, match="once"):
        asyncio.run(judge_twice())


def test_nothing_works_before_reset_or_after_close(backend: Backend) -> None:
    async def run(step: Callable[[Env], object], *, close: bool) -> None:
        env = backend.open()
        if close:
            await env.reset(backend.task)
            await env.close()
            await env.close()
        await step(env)  # type: ignore[misc]

    for close in (False, True):
        with pytest.raises(InfrastructureError):
            asyncio.run(run(lambda env: env.step(Wait(0.0)), close=close))
        with pytest.raises(EnvError):
            asyncio.run(run(lambda env: env.evaluate(), close=close))
    with pytest.raises(InfrastructureError, match="closed"):
        asyncio.run(run(lambda env: env.reset(backend.task), close=True))


def test_a_task_for_another_backend_is_refused_by_name(backend: Backend) -> None:
    with pytest.raises(SetupError, match="ubuntu"):
        asyncio.run(_play(backend.open(), backend.refused, []))
