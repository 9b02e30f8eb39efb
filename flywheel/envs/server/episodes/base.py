"""What runs in a worker process: one desktop that plays one episode after another.

Everything is synchronous and called from the worker's main thread, one call at a time, because DesktopEnv blocks and
Playwright's synchronous API is bound to a thread. The supervisor kills and replaces a worker whose call takes longer
than its deadline.

    start (reset observe* step* evaluate? recycle)* close; view wherever observe is
"""

from typing import Protocol

from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.types import Action, Observation, StepResult, Task


class Episode(Protocol):
    """A class of this kind is made by the worker as `kind(machine: str, options: dict)`, both from its command line.

    Besides the user's own, `options` holds `folder` (this desktop's session folder, made and removed by the
    supervisor) and `desktop` (its number, 0 to N - 1). Errors other than `EnvError` count as infrastructure failures,
    and the worker is replaced after them.
    """

    def start(self) -> None:
        """Boot the machine; afterwards it is ready for `reset`. Raises `InfrastructureError`."""
        ...

    def capabilities(self) -> Capabilities:
        """What this desktop offers; asked once, after `start`."""
        ...

    def reset(self, task: Task, options: ObserveOptions) -> Observation:
        """Set a task up on a clean desktop. Raises `SetupError` or `InfrastructureError`."""
        ...

    def step(self, action: Action, pause: float | None) -> StepResult:
        """Execute one action and look, after `pause` seconds (None: as long as the desktop needs to settle).

        An action that cannot be executed is a result with an error. Raises `InfrastructureError`.
        """
        ...

    def observe(self) -> Observation:
        """Look without acting. Raises `InfrastructureError`."""
        ...

    def evaluate(self) -> float:
        """The task's checker, in [0, 1]; called at most once an episode. Raises `EvaluatorError`."""
        ...

    def view(self) -> int | str:
        """Loopback port of a VNC server that shows the screen and takes no input, or a sentence on why there is none.

        It lives until `recycle`. Being watched never costs an episode: what goes wrong here is such a sentence too.
        """
        ...

    def recycle(self) -> None:
        """Back to a clean desktop, whatever the episode did to it. Raises `InfrastructureError`."""
        ...

    def health(self) -> str | None:
        """None when it is well, else one sentence; asked between episodes."""
        ...

    def close(self) -> None:
        """Leave nothing behind; safe to call twice, and from any state."""
        ...
