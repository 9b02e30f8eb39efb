"""What the desktop's widgets do: which of them show, how they look, and how they react to the mouse.

The keyboard's half is in `keyboard.py`. Everything that changes during an episode is in `State`.
"""

from dataclasses import dataclass, field
from typing import Any

from flywheel.envs.simulated.render import Widget, cell_of
from flywheel.envs.simulated.scene import Box, Scene
from flywheel.types import Click, Drag, Scroll

_KEEPS_FOCUS = ("field", "check", "button", "row", "icon")


@dataclass(slots=True)
class State:
    """All that changes. Lists are indexed by part; `open` is the menu or icon whose items show, `dialog` the open
    dialog, `selected` whether typing replaces what the focused field holds."""

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


class Machine:
    """A scene in motion."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.parts = scene.parts
        self.children = [scene.children(i) for i in range(len(scene.parts))]
        self.state = State(
            checked=[part.checked for part in scene.parts],
            text=[part.text for part in scene.parts],
            offset=[0] * len(scene.parts),
        )
        self.widgets: list[Widget] = []
        self.refresh()

    def record(self) -> dict[str, Any]:
        """What applications saw and hold: the ordered events, every field and check box, and how the episode ended."""
        state = self.state
        return {
            "events": [list(event) for event in state.events],
            "fields": {part.caption: state.text[i] for i, part in enumerate(self.parts) if part.kind == "field"},
            "checks": {part.caption: state.checked[i] for i, part in enumerate(self.parts) if part.kind == "check"},
            "status": state.status,
            "answer": state.answer,
        }

    def log(self, *event: Any) -> None:
        """Append one event to what applications saw."""
        self.state.events.append(list(event))

    # --- what shows ------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Bring `widgets` up to date: everything that shows, later ones on top."""
        self.widgets = [self._widget(i, box) for i, box in self._visible()]

    def widget_at(self, x: int, y: int) -> Widget | None:
        """The topmost widget under a point."""
        for widget in reversed(self.widgets):
            if 0 <= x - widget.left < widget.width and 0 <= y - widget.top < widget.height:
                return widget
        return None

    def _visible(self) -> list[tuple[int, Box]]:
        shown: list[tuple[int, Box]] = []
        for i, part in enumerate(self.parts):
            if part.box is not None and self._is_shown(i):
                shown.append((i, part.box))
            if part.kind == "list":
                rows = self.children[i][self.state.offset[i] :]
                shown.extend(zip(rows, part.slots, strict=False))
        return shown

    def _is_shown(self, index: int) -> bool:
        part, state = self.parts[index], self.state
        if part.parent is None:
            return index not in state.dropped
        if part.kind == "item":
            return state.open == part.parent
        return state.dialog == (index if part.kind == "dialog" else part.parent)

    def _widget(self, index: int, box: Box) -> Widget:
        part = self.parts[index]
        cell = cell_of(box, self.scene.screen)
        return Widget(part.kind, part.caption, self._look(index), *box, cell, self.state.text[index], index)

    def _look(self, index: int) -> str:
        state = self.state
        if state.open == index:
            return "open"
        words = []
        if state.checked[index]:
            words.append("checked")
        elif state.text[index]:
            words.append("filled")
        if state.focus == index:
            words.append("selected" if state.selected and state.text[index] else "focused")
        return " ".join(words) or "plain"

    # --- the mouse -------------------------------------------------------------------------------------

    def click(self, click: Click) -> None:
        """Held keys make no difference to these widgets, and the middle button does nothing."""
        self.state.pointer = (click.x, click.y)
        if click.button == "middle":
            return
        widget = self._live_at(click.x, click.y)
        if widget is None:
            self.state.open = self.state.focus = None
            self.state.selected = False
        elif click.button == "right":
            opens = widget.kind == "icon" and self.children[widget.index]
            self.state.open = widget.index if opens else None
        elif widget.kind == "icon":
            self.state.open, self.state.focus, self.state.selected = None, widget.index, False
            if click.count > 1:
                self.log("open", widget.caption)
        else:
            for _ in range(click.count):
                self.press(widget.index)
            self.state.selected = widget.kind == "field" and click.count > 1

    def drag(self, drag: Drag) -> None:
        """An icon dropped on a bin is gone; a drag that ends where it began is a click; others change nothing."""
        state = self.state
        start = drag.start or state.pointer
        state.pointer = (drag.x, drag.y)
        picked, target = self._live_at(*start), self._live_at(drag.x, drag.y)
        if picked is None or target is None:
            return
        if picked.index == target.index:
            self.click(Click(drag.x, drag.y))
        elif picked.kind == "icon" and target.kind == "bin":
            state.open = state.focus = None
            state.dropped.add(picked.index)
            self.log("drop", picked.caption, target.caption)

    def scroll(self, scroll: Scroll) -> None:
        """One row a notch, over a list or its rows; nothing scrolls sideways."""
        state = self.state
        if scroll.x is not None and scroll.y is not None:
            state.pointer = (scroll.x, scroll.y)
        widget = self._live_at(*state.pointer)
        if widget is None or widget.kind not in ("list", "row"):
            return
        index = self.parts[widget.index].parent if widget.kind == "row" else widget.index
        if index is not None:
            last = max(0, len(self.children[index]) - len(self.parts[index].slots))
            state.offset[index] = min(max(state.offset[index] - scroll.dy, 0), last)

    def press(self, index: int) -> None:
        """What the left button does to a widget, and the keyboard to the one that has the focus."""
        part, state = self.parts[index], self.state
        was_open, state.open = state.open, None
        state.selected = False
        if part.kind in _KEEPS_FOCUS:
            state.focus = index
        if part.kind == "check":
            state.checked[index] = not state.checked[index]
        elif part.kind == "menu":
            state.open = None if was_open == index else index
        elif part.kind == "icon":
            self.log("open", part.caption)
        elif part.kind == "button":
            self._press_button(index)
        elif part.parent is not None and (part.kind == "row" or (part.kind == "item" and was_open == part.parent)):
            self.log("select" if part.kind == "row" else "choose", self.parts[part.parent].caption, part.caption)

    def _press_button(self, index: int) -> None:
        part, state = self.parts[index], self.state
        if part.parent is not None:
            if state.dialog == part.parent:
                self.log("answer", self.parts[part.parent].caption, part.caption)
                state.dialog = None
            return
        if state.dialog is not None:
            return
        if part.submits:
            seen = self.record()
            self.log("submit", part.caption, {**seen["fields"], **seen["checks"]})
        else:
            self.log("press", part.caption)
        if self.children[index]:
            state.dialog, state.focus = self.children[index][0], None

    def _live_at(self, x: int, y: int) -> Widget | None:
        """What reacts at a point; behind an open dialog nothing does."""
        widget = self.widget_at(x, y)
        if widget is None or self.state.dialog is None:
            return widget
        return widget if self.parts[widget.index].parent == self.state.dialog else None
