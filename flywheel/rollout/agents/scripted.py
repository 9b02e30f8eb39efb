"""An agent that needs no model: the oracle of the simulated desktop, speaking through any action space.

It shows that a task, an action space and an environment fit together, and its trajectories are demonstrations.
"""

import time
from collections.abc import Callable

from flywheel.actions.base import ActionSpace
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.oracle import OracleStep, next_step
from flywheel.errors import ActionError, AgentError, SetupError
from flywheel.rollout.agents.base import Completion
from flywheel.types import Observation, PolicyRef, Sampling, Task

Oracle = Callable[[SimulatedDesktop, Task], OracleStep]


class ScriptedAgent:
    """Answers with what `oracle` would do, written by `space`.

    The agent sees no pixels: each session follows the episode on a desktop of its own, set up from the task and moved
    by its own answers as `space` reads them back. Nobody else may act in the environment meanwhile.

    Args:
        space: writes and reads the answers.
        oracle: the next step from a desktop's present state.
    """

    policy = PolicyRef("oracle", "scripted:oracle")

    def __init__(self, space: ActionSpace, oracle: Oracle = next_step) -> None:
        self._space = space
        self._oracle = oracle

    async def open(self, task: Task, sampling: Sampling) -> "ScriptedSession":
        """Raises `AgentError` for a task that is not for the simulated desktop."""
        return ScriptedSession(self._space, self._oracle, task)


class ScriptedSession:
    """One episode of a `ScriptedAgent`."""

    def __init__(self, space: ActionSpace, oracle: Oracle, task: Task) -> None:
        self._space = space
        self._oracle = oracle
        self._task = task
        self._shadow = SimulatedDesktop()
        try:
            self._shadow.reset(task)
        except SetupError as error:
            raise AgentError(f"The scripted agent cannot play this task: {error}") from error

    async def act(self, observation: Observation) -> Completion:
        """Raises `AgentError` when the action space has no words for the step."""
        started = time.perf_counter()
        step = self._oracle(self._shadow, self._task)
        screen = self._shadow.scene.screen
        try:
            text = self._space.format(step.action, screen, thinking=step.thinking, brief=step.brief)
        except ActionError as error:
            raise AgentError(f"{self._space.id} cannot say '{step.brief}': {error}") from error
        parsed = self._space.parse(text, screen)
        if parsed.action is not None:
            self._shadow.step(parsed.action)
        return Completion(text, seconds=time.perf_counter() - started)

    async def close(self) -> None:
        """Nothing is held."""
