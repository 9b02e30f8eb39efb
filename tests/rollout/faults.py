"""A desktop that fails on demand, and an agent that says what it is told to."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from flywheel.actions.base import ActionSpace
from flywheel.envs.base import Capabilities, Env
from flywheel.errors import AgentError
from flywheel.rollout.agents.base import Completion
from flywheel.types import Action, Observation, PolicyRef, Sampling, Size, StepResult, Task


class FaultyEnv:
    """A real desktop around which `fault` is raised at `at` (reset, step, evaluate); counts what was asked of it."""

    def __init__(self, env: Env, at: str = "", fault: BaseException | None = None, from_step: int = 0) -> None:
        self._env, self._at, self._fault, self._from_step = env, at, fault, from_step
        self.evaluations = self.closed = 0
        self.actions: list[Action] = []

    @property
    def capabilities(self) -> Capabilities:
        return self._env.capabilities

    async def reset(self, task: Task) -> Observation:
        self._maybe("reset")
        return await self._env.reset(task)

    async def step(self, action: Action) -> StepResult:
        self.actions.append(action)
        if len(self.actions) > self._from_step:
            self._maybe("step")
        return await self._env.step(action)

    async def evaluate(self) -> float:
        self.evaluations += 1
        self._maybe("evaluate")
        return await self._env.evaluate()

    async def close(self) -> None:
        self.closed += 1
        await self._env.close()

    def _maybe(self, now: str) -> None:
        if now == self._at and self._fault is not None:
            raise self._fault


class ShortEnv(FaultyEnv):
    """Says that it is over after every step."""

    async def step(self, action: Action) -> StepResult:
        return replace(await super().step(action), done=True)


class StuckEnv(FaultyEnv):
    """Never comes back from a step."""

    async def step(self, action: Action) -> StepResult:
        await asyncio.Event().wait()
        return await super().step(action)


class Parrot:
    """Says these actions (or plain texts) one after the other, the last one for ever."""

    policy = PolicyRef("parrot", "scripted:parrot")

    def __init__(self, space: ActionSpace, sayings: Sequence[Action | str], fault: AgentError | None = None) -> None:
        self._space, self._sayings, self._fault = space, sayings, fault
        self.open_sessions = 0

    async def open(self, task: Task, sampling: Sampling) -> "ParrotSession":
        self.open_sessions += 1
        return ParrotSession(self, self._space, list(self._sayings), self._fault)


class ParrotSession:
    """One episode of a `Parrot`; `seen` are the observations it was shown."""

    def __init__(self, parrot: Parrot, space: ActionSpace, left: list[Action | str], fault: AgentError | None) -> None:
        self._parrot, self._space, self._left, self._fault = parrot, space, left, fault
        self._closed = False

    async def act(self, observation: Observation) -> Completion:
        if self._fault is not None and len(self._left) == 1:
            raise self._fault
        saying = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return Completion(saying if isinstance(saying, str) else self._space.format(saying, Size(160, 128)))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._parrot.open_sessions -= 1
