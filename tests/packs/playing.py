"""Plays pack tasks through an env server, as the flywheel does: leases, the wire, the episode, OSWorld's evaluators."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from flywheel.actions.registry import action_space
from flywheel.envs.base import ObserveOptions
from flywheel.envs.pool import remote_env
from flywheel.envs.server.places import desktops_root
from flywheel.rollout.agents.base import Agent, AgentSession, Completion
from flywheel.rollout.agents.solutions import SolutionAgent, needs_accessibility
from flywheel.rollout.episode import EpisodeSpec, run_episode
from flywheel.types import Done, Observation, PolicyRef, Sampling, Size, Task, Trajectory
from tests.envs.server.serving import serving

SPACE = action_space("computer_use")


@dataclass(frozen=True, slots=True)
class Played:
    """A task, how doing nothing was judged, how its solution was."""

    task: Task
    nothing: Trajectory
    solved: Trajectory

    @property
    def right(self) -> bool:
        return (self.nothing.task_reward, self.solved.task_reward) == (0.0, 1.0)

    def line(self) -> str:
        """For reports of failures."""
        told = [f"{t.task_reward} {t.error or ''} ({t.wall_seconds:.0f} s)" for t in (self.nothing, self.solved)]
        return f"{self.task.family} {self.task.id}: nothing {told[0]}, solution {told[1]}"


class DoesNothing:
    """Says at once that the task is done."""

    policy = PolicyRef("nothing", "scripted:nothing")

    async def open(self, task: Task, sampling: Sampling) -> AgentSession:
        return _Idle()


class _Idle:
    async def act(self, observation: Observation) -> Completion:
        return Completion(SPACE.format(Done(), Size(1280, 720)))

    async def close(self) -> None: ...


@contextmanager
def desktops(count: int, screen: str = "1280x720") -> Iterator[str]:
    """URL of an env server with so many real desktops."""
    with serving(desktops_root(), "--backend", "xvfb", "-n", str(count), "--screen", screen) as served:
        yield served.url


async def play(url: str, task: Task, agent: Agent) -> Trajectory:
    """One episode, accessibility only where the solution needs it."""
    seeing = isinstance(agent, SolutionAgent) and needs_accessibility(task)
    observe = ObserveOptions(image="jpeg", accessibility=seeing, accessibility_chars=20_000)
    spec = EpisodeSpec(f"{agent.policy.version}-{task.id}", task, Sampling(), max_turns=60)
    env = remote_env(url, observe=observe)
    try:
        return await run_episode(env, agent, SPACE, spec)
    finally:
        await env.close()


async def play_all(url: str, tasks: Sequence[Task], at_once: int) -> AsyncIterator[Played]:
    """Both episodes of every task, several tasks at once, as they end."""
    room = asyncio.Semaphore(at_once)

    async def both(task: Task) -> Played:
        async with room:
            nothing = await play(url, task, DoesNothing())
            return Played(task, nothing, await play(url, task, SolutionAgent(SPACE)))

    for ended in asyncio.as_completed([both(task) for task in tasks]):
        yield await ended
