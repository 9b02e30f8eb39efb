"""The simulated desktop: an episode on a small state machine with a picture.

Synchronous and deterministic: the same task and the same actions give the same bytes and the same score. What the
desktop's applications saw is kept as an ordered list of events; checkers compare that and the final state, so an
unwanted press on the way is a failure.
"""

from typing import Any

from flywheel.envs.simulated import checkers, keyboard
from flywheel.envs.simulated.machine import Machine
from flywheel.envs.simulated.render import Renderer, Widget
from flywheel.envs.simulated.scene import Scene, scene_from_json
from flywheel.errors import EvaluatorError, SetupError, TaskError
from flywheel.types import (
    Action,
    Answer,
    Click,
    Code,
    Done,
    Drag,
    Key,
    Move,
    Observation,
    Scroll,
    StepResult,
    Task,
    Type,
    Wait,
)

CONFIG_TYPE = "simulated_desktop"


class SimulatedDesktop:
    """One desktop. `reset` (or `load`) first, then any number of steps; `evaluate` may be asked at any time here.

    Args:
        accessibility: put the accessibility tree into every observation.
    """

    def __init__(self, accessibility: bool = False) -> None:
        self.accessibility = accessibility
        self.task: Task | None = None

    # --- the episode ---------------------------------------------------------------------------------

    def reset(self, task: Task) -> Observation:
        """Raises `SetupError` when the task is not for this desktop or its data is malformed."""
        if task.platform != "simulated":
            raise SetupError(
                f"Task {task.id} is for platform '{task.platform}', which the simulated backend cannot run; "
                f"choose an environment backend with real {task.platform} desktops."
            )
        if len(task.config) != 1 or task.config[0].get("type") != CONFIG_TYPE:
            raise SetupError(f"Task {task.id} needs exactly one '{CONFIG_TYPE}' set-up step.")
        try:
            self.load(scene_from_json(task.config[0].get("parameters", {})))
        except TaskError as error:
            raise SetupError(f"Task {task.id} cannot be set up: {error}") from error
        self.task = task
        return self.observe()

    def load(self, scene: Scene) -> None:
        """Start from `scene` without a task; there is then nothing to evaluate."""
        self.task = None
        self.scene = scene
        self._machine = Machine(scene)
        self._initial = self._machine.record()
        self._renderer = Renderer(scene)

    def step(self, action: Action) -> StepResult:
        """Execute one action. What cannot be executed is a result with a sentence, never an exception.

        `Wait` changes nothing, as nothing here takes time; `Done` and `Answer` end the episode.
        """
        if self._machine.state.status is not None:
            return StepResult(self.observe(), executed=False, error="The episode has ended; reset first.", done=True)
        error = self._outside(action) or self._execute(action)
        if error is None:
            self._machine.refresh()
        done = self._machine.state.status is not None
        return StepResult(self.observe(error), executed=error is None, error=error, done=done)

    def observe(self, last_result: str | None = None) -> Observation:
        """The screen as it is."""
        tree = self.accessibility_tree() if self.accessibility else None
        screenshot = self._renderer.screenshot(self._machine.widgets)
        return Observation(screenshot, accessibility_tree=tree, last_result=last_result)

    def evaluate(self) -> float:
        """The task's checker on the state as it is: 0.0 or 1.0. Raises `EvaluatorError`."""
        if self.task is None:
            raise EvaluatorError("There is no task to judge; reset the desktop with one first.")
        return checkers.evaluate(self.task.evaluator, self.state(), self._initial)

    def _execute(self, action: Action) -> str | None:
        machine = self._machine
        match action:
            case Click():
                machine.click(action)
            case Move():
                machine.state.pointer = (action.x, action.y)
            case Drag():
                machine.drag(action)
            case Scroll():
                machine.scroll(action)
            case Type():
                keyboard.type_text(machine, action.text)
            case Key():
                return keyboard.press_keys(machine, action.keys)
            case Done():
                machine.state.status = action.status
            case Answer():
                machine.state.status, machine.state.answer = "answer", action.text
            case Code():
                return "Code is not executed on the simulated desktop; use the mouse and the keyboard."
            case Wait():
                pass
        return None

    def _outside(self, action: Action) -> str | None:
        points: list[tuple[int, int]] = []
        if isinstance(action, Click | Move | Drag):
            points.append((action.x, action.y))
        if isinstance(action, Drag) and action.start is not None:
            points.append(action.start)
        if isinstance(action, Scroll) and action.x is not None and action.y is not None:
            points.append((action.x, action.y))
        width, height = self.scene.screen
        for x, y in points:
            if not (0 <= x < width and 0 <= y < height):
                return f"The point ({x}, {y}) is outside the {width} x {height} screen."
        return None

    # --- what can be known about it ------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What checkers see: `events` in order, `fields` and `checks` by caption, `status` and `answer` at the end."""
        return self._machine.record()

    def widgets(self) -> list[Widget]:
        """Everything that is visible, in the order of drawing (later ones on top)."""
        return list(self._machine.widgets)

    def widget_at(self, x: int, y: int) -> Widget | None:
        """The topmost widget under a point."""
        return self._machine.widget_at(x, y)

    @property
    def focused(self) -> int | None:
        """Number of the part with the keyboard focus."""
        return self._machine.state.focus

    @property
    def selected(self) -> bool:
        """Whether typing replaces the text of the focused field."""
        return self._machine.state.selected

    @property
    def opened(self) -> int | None:
        """Number of the menu or icon whose items are shown."""
        return self._machine.state.open

    def accessibility_tree(self) -> str:
        """One line a widget under a line of headings: role, name, state, bounds as left,top,width,height."""
        lines = ["role\tname\tstate\tbounds"]
        for widget in self._machine.widgets:
            state = f"{widget.state} '{widget.text}'" if widget.text else widget.state
            lines.append(f"{widget.kind}\t{widget.caption}\t{state}\t{','.join(map(str, widget.box))}")
        return "\n".join(lines)
