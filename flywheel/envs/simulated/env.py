"""The simulated desktop behind the contract that every environment keeps."""

from flywheel.envs.base import Capabilities
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.errors import EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Action, Observation, Size, StepResult, Task


class SimulatedEnv:
    """One simulated desktop in this process; a step takes well under a millisecond, so nothing is awaited.

    Args:
        screen: size that tasks must have been made for.
        layout: layout that tasks must have been made for, "roomy" or "free".
        accessibility: put the accessibility tree into observations.
    """

    def __init__(self, screen: Size, layout: str = "roomy", accessibility: bool = False) -> None:
        self._capabilities = Capabilities(screen=Size(*screen))
        self._layout = layout
        self._desktop = SimulatedDesktop(accessibility)
        self._running = False
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def reset(self, task: Task) -> Observation:
        """Raises `SetupError` when the task is for another backend, screen or layout."""
        self._refuse_closed()
        self._running = False
        observation = self._desktop.reset(task)
        scene = self._desktop.scene
        if (scene.screen, scene.layout) != (self._capabilities.screen, self._layout):
            theirs, ours = _words(scene.screen, scene.layout), _words(self._capabilities.screen, self._layout)
            raise SetupError(
                f"Task {task.id} is for a screen of {theirs}, this desktop has {ours}; "
                "make tasks and desktop with the same env.width, env.height and env.layout."
            )
        self._running = True
        return observation

    async def step(self, action: Action) -> StepResult:
        """Raises `InfrastructureError` before reset, after evaluate and after close."""
        self._refuse_closed()
        if not self._running:
            raise InfrastructureError("The simulated desktop has no running episode; reset it first.")
        return self._desktop.step(action)

    async def evaluate(self) -> float:
        """0.0 or 1.0; once an episode. Raises `EvaluatorError` the second time."""
        self._refuse_closed()
        if not self._running:
            raise EvaluatorError("The episode was judged already or never began; an episode is judged once.")
        self._running = False
        return self._desktop.evaluate()

    async def close(self) -> None:
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InfrastructureError("The simulated desktop is closed; open a new one.")


def _words(screen: Size, layout: str) -> str:
    return f"{screen.width} x {screen.height} ({layout})"
