"""The scripted agent speaks through action spaces, and says what a space has no words for."""

import asyncio

import pytest

from flywheel.actions.base import ActionSpace
from flywheel.actions.registry import action_space
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.families import FAMILIES
from flywheel.envs.simulated.oracle import OracleStep
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import AgentError
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.types import Click, Sampling, Size, Task, Type


async def _play(agent: ScriptedAgent, space: ActionSpace, task: Task, screen: Size, layout: str) -> float:
    env = SimulatedEnv(screen, layout)
    session = await agent.open(task, Sampling())
    observation = await env.reset(task)
    for _ in range(10):
        completion = await session.act(observation)
        parsed = space.parse(completion.text, screen)
        assert parsed.action is not None, parsed.error
        assert not parsed.fallback
        result = await env.step(parsed.action)
        assert result.executed
        observation = result.observation
        if result.done:
            break
    await session.close()
    return await env.evaluate()


@pytest.mark.parametrize(
    ("layout", "screen"), [("roomy", Size(160, 128)), ("free", Size(160, 128)), ("free", Size(1280, 720))]
)
@pytest.mark.parametrize("name", ["computer_use", "pyautogui"])
def test_every_family_is_solved(name: str, layout: str, screen: Size) -> None:
    space = action_space(name)
    agent = ScriptedAgent(space)
    count = len(FAMILIES) * 4
    for task in generate_tasks(split="heldout", count=count, seed=9, screen=screen, layout=layout):
        score = asyncio.run(_play(agent, space, task, screen, layout))
        assert score == 1.0, (task.family, task.level, task.instruction)


def test_a_space_without_a_mouse_says_what_it_lacks() -> None:
    """`sendkey` has keys only: giving up is all that this oracle can say in it."""
    click, missing = generate_tasks(
        split="train", count=2, seed=0, screen=Size(160, 128), families=("click", "infeasible"), levels=(1,)
    )
    space = action_space("sendkey")
    assert asyncio.run(_play(ScriptedAgent(space), space, missing, Size(160, 128), "roomy")) == 1.0
    with pytest.raises(AgentError, match=r"sendkey/1 cannot say 'click "):
        asyncio.run(_play(ScriptedAgent(space), space, click, Size(160, 128), "roomy"))


def test_the_answer_carries_what_the_oracle_thinks() -> None:
    (task,) = generate_tasks(split="train", count=1, seed=0, screen=Size(160, 128))
    space = action_space("computer_use")

    async def first() -> str:
        session = await ScriptedAgent(space).open(task, Sampling())
        return (await session.act(SimulatedDesktop().reset(task))).text

    text = asyncio.run(first())
    parsed = space.parse(text, Size(160, 128))
    assert isinstance(parsed.action, Click)
    assert parsed.thinking is not None
    assert parsed.thinking.startswith("button ")
    assert f"click {parsed.thinking.split()[1]}" in text


def test_another_oracle_can_speak() -> None:
    (task,) = generate_tasks(split="train", count=1, seed=0, screen=Size(160, 128))

    def stubborn(desktop: SimulatedDesktop, task: Task) -> OracleStep:
        return OracleStep(Type("blue"), "type blue", "type blue")

    space = action_space("computer_use")
    assert asyncio.run(_play(ScriptedAgent(space, stubborn), space, task, Size(160, 128), "roomy")) == 0.0


def test_tasks_of_other_platforms_are_refused() -> None:
    agent = ScriptedAgent(action_space("computer_use"))
    task = Task("elsewhere", "Rename it", "os", platform="ubuntu")
    with pytest.raises(AgentError, match=r"cannot play this task: .*ubuntu"):
        asyncio.run(agent.open(task, Sampling()))
