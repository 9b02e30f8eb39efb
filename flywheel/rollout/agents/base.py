"""What an agent is: something that opens a session for an episode and answers observations with completions."""

from dataclasses import dataclass
from typing import Protocol

from flywheel.types import Observation, PolicyRef, Sampling, Task


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. Ids are as sampled, never re-tokenised; agents behind text-only protocols leave them empty."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    image_grid: tuple[int, int, int] | None = None
    finish_reason: str = "stop"
    seconds: float = 0.0


class AgentSession(Protocol):
    """One episode's conversation."""

    async def act(self, observation: Observation) -> Completion:
        """Answer the newest observation; raises `AgentError`."""
        ...

    async def close(self) -> None:
        """Free what the conversation holds; safe to call twice."""
        ...


class Agent(Protocol):
    """A policy that can play many episodes at once."""

    policy: PolicyRef

    async def open(self, task: Task, sampling: Sampling) -> AgentSession:
        """Start a conversation about `task`."""
        ...
