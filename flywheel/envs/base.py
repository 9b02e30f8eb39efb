"""What an environment is: a desktop that takes a task, takes actions, and judges the end state once."""

from dataclasses import dataclass
from typing import Protocol

from flywheel.types import Action, Codec, Observation, Size, StepResult, Task


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend offers; tasks that need more are refused before a rollout starts.

    `apps` are OSWorld's names (`libreoffice_calc`, `chrome`, ...). `action_spaces` holds `code` where `Code` actions
    run inside the guest. `snapshots`: whether the machine reverts to one. `isolation` says in a word what keeps an
    agent in (`process`, `bubblewrap`, `vm`). `images` are the codecs that it can send.
    """

    screen: Size
    apps: frozenset[str] = frozenset()
    platform: str = "simulated"
    internet: bool = False
    action_spaces: frozenset[str] = frozenset()
    snapshots: bool = False
    isolation: str = "process"
    images: frozenset[str] = frozenset({"raw"})


@dataclass(frozen=True, slots=True)
class ObserveOptions:
    """What observations hold. The accessibility tree can take seconds and 1 MB: opt-in, cut at so many characters.

    `quality` is for JPEG, 1 to 100; PNG and WebP are lossless.
    """

    image: Codec = "png"
    quality: int = 85
    accessibility: bool = False
    accessibility_chars: int = 4096
    terminal: bool = False


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
