"""What an environment is: a desktop that takes a task, takes actions, and judges the end state once."""

from dataclasses import dataclass
from typing import Protocol

from flywheel.types import Action, Observation, Size, StepResult, Task


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend offers; tasks that need more are refused before a rollout starts."""

    screen: Size
    apps: frozenset[str] = frozenset()
    platform: str = "simulated"
    internet: bool = False


class Env(Protocol):
    """One desktop. The order is reset, any number of steps, at most one evaluate; close from any state.

    Terminal actions (`Done`, `Answer`) go through `step`, because the checker of an infeasible task must see them.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def reset(self, task: Task) -> Observation:
        """Set the task up. Raises `SetupError` or `InfrastructureError`."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Execute one action. An action that cannot be executed is a result with an error, not an exception."""
        ...

    async def evaluate(self) -> float:
        """The task's own checker on the state as it is, in [0, 1]; raises `EvaluatorError`."""
        ...

    async def close(self) -> None:
        """Release everything; safe to call twice."""
        ...
