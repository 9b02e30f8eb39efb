"""An agent that plays the solutions that task packs bring along: the scripted teacher of real desktops.

A task file holds its solution under the key `solution`, a list of steps:

    {"action": {"type": "key", "keys": ["ctrl", "s"]}, "thinking": "save the file", "brief": "press ctrl s"}
    {"action": {"type": "click"}, "find": {"role": "push-button", "name": "Send"}, ...}

`action` is the wire form of an `Action`. With `find` its point is the middle of that element of the accessibility
tree, which observations must then hold; until the element is there, the agent waits. The last step ends the episode.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.actions.base import ActionSpace
from flywheel.envs.wire import action_from_json
from flywheel.errors import ActionError, AgentError
from flywheel.rollout.agents.base import Completion
from flywheel.types import Action, Observation, PolicyRef, Sampling, Size, Task, Wait

PATIENCE = 20
"""Waits, of a second each, for an element that is not there yet; a browser on a busy host takes ten."""


class SolutionAgent:
    """Answers with the next step of the task's own solution, written by `space`."""

    policy = PolicyRef("solutions", "scripted:solutions")

    def __init__(self, space: ActionSpace) -> None:
        self._space = space

    async def open(self, task: Task, sampling: Sampling) -> "ScriptedSolution":
        """Raises `AgentError` for a task that brings no solution."""
        return ScriptedSolution(self._space, task)


class ScriptedSolution:
    """One episode of a `SolutionAgent`: the next action from the last observation."""

    def __init__(self, space: ActionSpace, task: Task) -> None:
        steps = task.raw.get("solution")
        if not isinstance(steps, Sequence) or not steps:
            raise AgentError(f"Task {task.id} brings no solution; only tasks of packs do.")
        self._space, self._task, self._steps = space, task, steps
        self._next = self._waited = 0

    async def act(self, observation: Observation) -> Completion:
        """Raises `AgentError` when the solution is over, does not fit the desktop, or cannot be said by the space."""
        started = time.perf_counter()
        if self._next >= len(self._steps):
            raise AgentError(f"The solution of task {self._task.id} is over, and the episode is not.")
        if observation.screenshot is None:
            raise AgentError("A solution cannot be played without screenshots.")
        step = self._steps[self._next]
        action = self._action(step, observation, observation.screenshot.size)
        try:
            text = self._space.format(
                action, observation.screenshot.size, thinking=step["thinking"], brief=self._brief(step, action)
            )
        except ActionError as error:
            raise AgentError(f"{self._space.id} cannot say '{step['brief']}': {error}") from error
        return Completion(text, seconds=time.perf_counter() - started)

    async def close(self) -> None:
        """Nothing is held."""

    def _brief(self, step: Mapping[str, Any], action: Action) -> str:
        return "wait" if "find" in step and isinstance(action, Wait) else str(step["brief"])

    def _action(self, step: Mapping[str, Any], observation: Observation, screen: Size) -> Action:
        told = dict(step["action"])
        if "find" in step:
            point = find_element(observation.accessibility_tree or "", screen, **step["find"])
            if point is None:
                return self._wait(step["find"])
            told["x"], told["y"] = point
        self._next, self._waited = self._next + 1, 0
        try:
            return action_from_json(told)
        except ActionError as error:
            raise AgentError(f"Task {self._task.id} has a solution that cannot be read: {error}") from error

    def _wait(self, wanted: Mapping[str, str]) -> Action:
        if self._waited == PATIENCE:
            raise AgentError(
                f"The {wanted['role']} '{wanted['name']}' is not in the accessibility tree; set env.accessibility=true "
                "and see that the window fits the screen."
            )
        self._waited += 1
        return Wait(1.0)


def needs_accessibility(task: Task) -> bool:
    """Whether the task's solution looks elements up; then observations must hold the accessibility tree."""
    return any("find" in step for step in task.raw.get("solution", ()))


def find_element(tree: str, screen: Size, role: str, name: str) -> tuple[int, int] | None:
    """The middle, pixels, of the first element of that role and name whose middle is on the screen.

    `tree` is what observations hold: a line an element, tab-separated tag, name, text, position and size.
    """
    for columns in (line.split("\t") for line in tree.splitlines()):
        if len(columns) >= 5 and columns[:2] == [role, name]:
            x, y, width, height = (int(number) for number in re.findall(r"-?\d+", columns[3] + columns[4]))
            middle = (x + width // 2, y + height // 2)
            if 0 <= middle[0] < screen.width and 0 <= middle[1] < screen.height:
                return middle
    return None
