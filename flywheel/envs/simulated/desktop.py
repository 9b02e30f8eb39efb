"""The simulated desktop itself: a small state machine with a picture.

Synchronous and deterministic: the same task and the same actions give the same bytes and the same score. What the
desktop's applications saw is kept as an ordered list of events; checkers compare that and the final state, so an
unwanted press on the way is a failure.
"""

from dataclasses import dataclass, field
from typing import Any

from flywheel.envs.simulated import checkers
from flywheel.envs.simulated.keys import normalise
from flywheel.envs.simulated.render import Renderer, Widget, cell_of
from flywheel.envs.simulated.scene import Box, Scene, scene_from_json
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
_FOCUSABLE = ("field", "check", "button")


@dataclass(slots=True)
class _State:
    """All that changes during an episode."""

    checked: list[bool]
    text: list[str]
    offset: list[int]
    dropped: set[int] = field(default_factory=set)
    open: int | None = None
    dialog: int | None = None
    focus: int | None = None
    selected: bool = False
    pointer: tuple[int, int] = (0, 0)
    events: list[list[Any]] = field(default_factory=list)
    status: str | None = None
    answer: str | None = None


class SimulatedDesktop:
    """One desktop. `reset` first, then any number of steps; `evaluate` may be asked at any time here.

    Args:
        accessibility: put the accessibility tree into every observation.
    """

    def __init__(self, accessibility: bool = False) -> None:
        self.accessibility = accessibility
        self.task: Task | None = None

    # --- the episode -----------------------------------------------------------------------------

    def reset(self, task: Task) -> Observation:
        """Raises `SetupError` when the task is not for this desktop or its data is malformed."""
        if task.platform != "simulated":
            raise SetupError(f"Task {task.id} is for platform '{task.platform}'; run it on that backend instead.")
        if len(task.config) != 1 or task.config[0].get("type") != CONFIG_TYPE:
            raise SetupError(f"Task {task.id} needs exactly one '{CONFIG_TYPE}' set-up step.")
        try:
            self.load(scene_from_json(task.config[0].get("parameters", {})))
        except TaskError as error:
            raise SetupError(f"Task {task.id} cannot be set up: {error}") from error
        self.task = task
        return self.observe()

    def load(self, scene: Scene) -> None:
        """Start from `scene` without a task; `evaluate` is then not possible."""
        self.task = None
        self.scene = scene
        self._children = [scene.children(i) for i in range(len(scene.parts))]
        self._state = _State(
            checked=[part.checked for part in scene.parts],
            text=[part.text for part in scene.parts],
            offset=[0] * len(scene.parts),
        )
        self._initial = self.state()
        self._renderer = Renderer(scene)
        self._refresh()

    def step(self, action: Action) -> StepResult:
        """Execute one action. What cannot be executed is a result with a sentence, never an exception."""
        if self._state.status is not None:
            return StepResult(self.observe(), executed=False, error="The episode has ended; reset first.", done=True)
        error = self._execute(action)
        if error is None:
            self._refresh()
        done = self._state.status is not None
        return StepResult(self.observe(error), executed=error is None, error=error, done=done)

    def observe(self, last_result: str | None = None) -> Observation:
        """The screen as it is."""
        tree = self.accessibility_tree() if self.accessibility else None
        return Observation(self._renderer.screenshot(self._widgets), accessibility_tree=tree, last_result=last_result)

    def evaluate(self) -> float:
        """The task's checker on the state as it is: 0.0 or 1.0. Raises `EvaluatorError`."""
        if self.task is None:
            raise EvaluatorError("There is no task to judge; reset the desktop with one first.")
        return checkers.evaluate(self.task.evaluator, self.state(), self._initial)

    def state(self) -> dict[str, Any]:
        """What applications saw and hold: the ordered events, every field and check box, and how the episode ended."""
        parts, state = self.scene.parts, self._state
        return {
            "events": [list(event) for event in state.events],
            "fields": {part.caption: state.text[i] for i, part in enumerate(parts) if part.kind == "field"},
            "checks": {part.caption: state.checked[i] for i, part in enumerate(parts) if part.kind == "check"},
            "status": state.status,
            "answer": state.answer,
        }

    # --- what can be seen --------------------------------------------------------------------------

    def widgets(self) -> list[Widget]:
        """Everything that is visible, in the order of drawing (later ones on top)."""
        return list(self._widgets)

    def widget_at(self, x: int, y: int) -> Widget | None:
        """The topmost widget under a point."""
        for widget in reversed(self._widgets):
            if 0 <= x - widget.left < widget.width and 0 <= y - widget.top < widget.height:
                return widget
        return None

    @property
    def focused(self) -> int | None:
        """Number of the part with the keyboard focus."""
        return self._state.focus

    @property
    def selected(self) -> bool:
        """Whether typing replaces the text of the focused field."""
        return self._state.selected

    @property
    def opened(self) -> int | None:
        """Number of the menu or icon whose items are shown."""
        return self._state.open

    def accessibility_tree(self) -> str:
        """One line a widget: role, name, state, bounds as left,top,width,height."""
        lines = ["role\tname\tstate\tbounds"]
        for widget in self._widgets:
            state = widget.state if not widget.text else f"{widget.state} '{widget.text}'"
            bounds = f"{widget.left},{widget.top},{widget.width},{widget.height}"
            lines.append(f"{widget.kind}\t{widget.caption}\t{state}\t{bounds}")
        return "\n".join(lines)

    def _refresh(self) -> None:
        self._widgets = [self._widget(i, box) for i, box in self._visible()]

    def _visible(self) -> list[tuple[int, Box]]:
        shown: list[tuple[int, Box]] = []
        state, parts = self._state, self.scene.parts
        for i, part in enumerate(parts):
            if part.kind == "row":
                continue
            if part.parent is None:
                if i not in state.dropped and part.box is not None:
                    shown.append((i, part.box))
            elif part.box is not None and self._is_shown(i):
                shown.append((i, part.box))
            if part.kind == "list":
                rows = self._children[i][state.offset[i] :]
                shown.extend(zip(rows, part.slots, strict=False))
        return shown

    def _is_shown(self, index: int) -> bool:
        part = self.scene.parts[index]
        if part.kind == "item":
            return self._state.open == part.parent
        return self._state.dialog == (index if part.kind == "dialog" else part.parent)

    def _widget(self, index: int, box: Box) -> Widget:
        part = self.scene.parts[index]
        cell = cell_of(box, self.scene.screen)
        return Widget(part.kind, part.caption, self._look(index), *box, cell, self._state.text[index], index)

    def _look(self, index: int) -> str:
        state = self._state
        if state.open == index:
            return "open"
        words = []
        if state.checked[index]:
            words.append("checked")
        elif state.text[index]:
            words.append("filled")
        if state.focus == index:
            words.append("focused")
        return " ".join(words) or "plain"

    # --- actions -------------------------------------------------------------------------------------

    def _execute(self, action: Action) -> str | None:
        outside = self._outside(action)
        if outside:
            return outside
        match action:
            case Click():
                self._click(action)
            case Move():
                self._state.pointer = (action.x, action.y)
            case Drag():
                self._drag(action)
            case Scroll():
                self._scroll(action)
            case Type():
                self._type(action.text)
            case Key():
                return self._key(action.keys)
            case Wait():
                pass
            case Done():
                self._state.status = action.status
            case Answer():
                self._state.status, self._state.answer = "answer", action.text
            case Code():
                return "Code is not executed on the simulated desktop; use the mouse and the keyboard."
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

    def _click(self, click: Click) -> None:
        state = self._state
        state.pointer = (click.x, click.y)
        widget = self._live_widget(click.x, click.y)
        if click.button == "middle":
            return
        if widget is None or (click.button == "right" and widget.kind != "icon"):
            state.open = None
            if widget is None:
                state.focus = None
            return
        if click.button == "right":
            state.open = widget.index if self._children[widget.index] else None
            return
        if widget.kind == "icon":
            state.open = None
            if click.count > 1:
                state.events.append(["open", widget.caption])
            return
        for _ in range(click.count):
            self._press(widget.index)
        if widget.kind == "field" and click.count > 1:
            state.selected = True

    def _live_widget(self, x: int, y: int) -> Widget | None:
        """What reacts at a point; behind an open dialog nothing does."""
        widget = self.widget_at(x, y)
        if widget is None or self._state.dialog is None:
            return widget
        return widget if self.scene.parts[widget.index].parent == self._state.dialog else None

    def _press(self, index: int) -> None:
        part, state = self.scene.parts[index], self._state
        was_open, state.open = state.open, None
        parent = part.parent
        if part.kind == "field":
            state.focus, state.selected = index, False
        elif part.kind == "check":
            state.focus = index
            state.checked[index] = not state.checked[index]
        elif part.kind == "menu":
            state.open = None if was_open == index else index
        elif part.kind == "item" and parent is not None:
            if was_open == parent:
                state.events.append(["choose", self.scene.parts[parent].caption, part.caption])
        elif part.kind == "row" and parent is not None:
            state.events.append(["select", self.scene.parts[parent].caption, part.caption])
        elif part.kind == "button":
            self._press_button(index)

    def _press_button(self, index: int) -> None:
        part, state = self.scene.parts[index], self._state
        if part.parent is not None:
            if state.dialog == part.parent:
                state.events.append(["answer", self.scene.parts[part.parent].caption, part.caption])
                state.dialog = None
            return
        if state.dialog is not None:
            return
        state.focus = index
        if part.submits:
            seen = self.state()
            state.events.append(["submit", part.caption, {**seen["fields"], **seen["checks"]}])
        else:
            state.events.append(["press", part.caption])
        if self._children[index]:
            state.dialog = self._children[index][0]
            state.focus = None

    def _drag(self, drag: Drag) -> None:
        start = drag.start or self._state.pointer
        self._state.pointer = (drag.x, drag.y)
        picked, target = self._live_widget(*start), self._live_widget(drag.x, drag.y)
        if picked is None or target is None:
            return
        if picked.index == target.index:
            self._click(Click(drag.x, drag.y))
        elif picked.kind == "icon" and target.kind == "bin":
            self._state.open = None
            self._state.dropped.add(picked.index)
            self._state.events.append(["drop", picked.caption, target.caption])

    def _scroll(self, scroll: Scroll) -> None:
        state = self._state
        if scroll.x is not None and scroll.y is not None:
            state.pointer = (scroll.x, scroll.y)
        widget = self._live_widget(*state.pointer)
        if widget is None:
            return
        index: int | None = widget.index if widget.kind == "list" else None
        if widget.kind == "row":
            index = self.scene.parts[widget.index].parent
        if index is not None:
            last = max(0, len(self._children[index]) - len(self.scene.parts[index].slots))
            state.offset[index] = min(max(state.offset[index] - scroll.dy, 0), last)

    def _type(self, text: str) -> None:
        for letter in text:
            if letter == "\n":
                self._key(("enter",))
            elif letter == "\t":
                self._key(("tab",))
            else:
                self._letter(letter)

    def _letter(self, letter: str) -> None:
        state = self._state
        if state.focus is None or state.dialog is not None or self.scene.parts[state.focus].kind != "field":
            return
        state.text[state.focus] = letter if state.selected else state.text[state.focus] + letter
        state.selected = False

    def _key(self, keys: tuple[str, ...]) -> str | None:
        names = normalise(keys)
        if isinstance(names, str):
            return names
        if len(names) == 1 or names[:-1] == ("shift",):
            self._single_key(names[-1], shifted=len(names) > 1)
        else:
            self._shortcut(names)
        return None

    def _single_key(self, name: str, shifted: bool) -> None:
        state = self._state
        focus = state.focus if state.dialog is None else None
        kind = None if focus is None else self.scene.parts[focus].kind
        if name == "escape":
            self._escape()
        elif name == "tab" and state.dialog is None:
            self._move_focus(-1 if shifted else 1)
        elif focus is None or kind is None:
            return
        elif kind == "field":
            self._edit(focus, name, shifted)
        elif name in ("enter", "space"):
            self._press(focus)

    def _escape(self) -> None:
        state = self._state
        if state.dialog is not None:
            state.events.append(["dismiss", self.scene.parts[state.dialog].caption])
            state.dialog = None
        state.open = None

    def _move_focus(self, by: int) -> None:
        order = [widget.index for widget in self._widgets if widget.kind in _FOCUSABLE]
        if not order:
            return
        order.sort(key=lambda i: (self.scene.parts[i].box or (0, 0))[1::-1])
        if self._state.focus in order:
            position = (order.index(self._state.focus) + by) % len(order)
        else:
            position = 0 if by > 0 else -1
        self._state.focus, self._state.selected = order[position], False

    def _edit(self, index: int, name: str, shifted: bool) -> None:
        state = self._state
        if name == "enter":
            state.events.append(["enter", self.scene.parts[index].caption, state.text[index]])
        elif name in ("backspace", "delete"):
            if state.selected:
                state.text[index] = ""
            elif name == "backspace":
                state.text[index] = state.text[index][:-1]
            state.selected = False
        elif name == "space":
            self._letter(" ")
        elif len(name) == 1:
            self._letter(name.upper() if shifted else name)

    def _shortcut(self, names: tuple[str, ...]) -> None:
        state = self._state
        if state.dialog is not None:
            return
        part = None if state.focus is None else self.scene.parts[state.focus]
        if names == ("ctrl", "a") and part is not None and part.kind == "field":
            state.selected = True
        else:
            state.events.append(["shortcut", "+".join(names), part.caption if part else None])
