"""The oracle: knows the checker, looks at the desktop, says the next step.

Closed-loop: each step is planned from the state as it is, so the oracle can take over anywhere. It reads the wanted
state from the task's evaluator: first what must be typed and ticked, then the next event that has not happened. What
it thinks about a widget is exactly `kind caption cell`.
"""

from dataclasses import dataclass
from typing import Any

from flywheel.datasets.task_files import INFEASIBLE
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.render import Widget
from flywheel.errors import SetupError
from flywheel.types import Action, Click, Done, Drag, Key, Scroll, Task, Type


@dataclass(frozen=True, slots=True)
class OracleStep:
    """One step of a demonstration; `brief` is the short sentence that says what is done."""

    action: Action
    thinking: str
    brief: str


def plan(desktop: SimulatedDesktop, task: Task, limit: int = 32) -> list[OracleStep]:
    """Play `task` on `desktop` from its start; returns every step, the last one `Done`.

    Raises `SetupError` when the task needs more than `limit` steps, which a well-formed one never does.
    """
    desktop.reset(task)
    steps = []
    for _ in range(limit):
        step = next_step(desktop, task)
        steps.append(step)
        if desktop.step(step.action).done:
            return steps
    raise SetupError(f"Task {task.id} is not finished after {limit} steps of the oracle; its checker cannot be met.")


def next_step(desktop: SimulatedDesktop, task: Task) -> OracleStep:
    """The best step from here; `Done("failure")` when the task is infeasible or has been spoilt."""
    if task.evaluator["func"] == INFEASIBLE:
        missing = task.evaluator.get("expected", {}).get("rules", {}).get("missing", "")
        return OracleStep(Done("failure"), f"missing {missing}".strip(), "missing")
    wanted = task.evaluator["expected"]["rules"]["expected"]
    return _Pilot(desktop).towards(wanted) or OracleStep(Done("failure"), "stuck", "stuck")


class _Pilot:
    """Finds the next step towards a wanted state."""

    def __init__(self, desktop: SimulatedDesktop) -> None:
        self.desktop = desktop
        self.parts = desktop.scene.parts
        self.shown = {widget.index: widget for widget in desktop.widgets()}

    def towards(self, wanted: dict[str, Any]) -> OracleStep | None:
        state = self.desktop.state()
        done = len(state["events"])
        if state["events"] != wanted["events"][:done]:
            return None
        for caption, text in wanted["fields"].items():
            if state["fields"].get(caption) != text:
                return self._fill(caption, text)
        for caption, checked in wanted["checks"].items():
            if state["checks"].get(caption) != checked:
                return self._click(self._find("check", caption), "tick" if checked else "untick")
        if done == len(wanted["events"]):
            return OracleStep(Done("success"), "finish", "finish")
        return self._cause(wanted["events"][done])

    def _cause(self, event: list[Any]) -> OracleStep | None:
        match event:
            case ["press" | "submit", caption, *_]:
                return self._click(self._find("button", caption))
            case ["answer", title, caption]:
                return self._click(self._find("button", caption, parent=self._find("dialog", title)))
            case ["choose", title, caption]:
                return self._choose(title, caption)
            case ["select", title, caption]:
                return self._select(title, caption)
            case ["drop", picked, target]:
                return self._drag(self._find("icon", picked), self._find("bin", target))
            case ["open", caption]:
                return self._click(self._find("icon", caption), "double click", count=2)
            case ["shortcut", combination, caption]:
                return self._press(caption, tuple(combination.split("+")))
            case ["enter", caption, _]:
                return self._press(caption, ("enter",))
        return None

    # --- ways to reach a widget ----------------------------------------------------------------------

    def _find(self, kind: str, caption: str, parent: int | None = None) -> int | None:
        for i, part in enumerate(self.parts):
            if part.kind == kind and part.caption == caption and (parent is None or part.parent == parent):
                return i
        return None

    def _click(self, index: int | None, verb: str = "click", **how: Any) -> OracleStep | None:
        widget = self.shown.get(index) if index is not None else None
        if widget is None:
            return None
        if self.desktop.widget_at(*widget.center) != widget:
            return _keys(("escape",))
        return OracleStep(Click(*widget.center, **how), _look(widget), f"{verb} {widget.caption}")

    def _fill(self, caption: str, text: str) -> OracleStep | None:
        index = self._find("field", caption)
        if index is None:
            return None
        if self.desktop.focused != index:
            return self._click(index)
        present = self.desktop.state()["fields"][caption]
        if not text.startswith(present) and not self.desktop.selected:
            return _keys(("ctrl", "a"))
        typed = text if self.desktop.selected else text[len(present) :]
        if not typed:
            return _keys(("backspace",))
        return OracleStep(Type(typed), f"type {typed}", f"type {typed}")

    def _choose(self, title: str, caption: str) -> OracleStep | None:
        opener = self._find("menu", title)
        icon = opener is None
        if icon:
            opener = self._find("icon", title)
        if opener is None or self.desktop.opened == opener:
            return self._click(self._find("item", caption, parent=opener))
        return self._click(opener, "right click", button="right") if icon else self._click(opener)

    def _select(self, title: str, caption: str) -> OracleStep | None:
        index = self._find("list", title)
        row = self._find("row", caption, parent=index)
        if index is None or row is None or row in self.shown:
            return self._click(row)
        visible = len(self.parts[index].slots)
        first = min(i for i in self.shown if self.parts[i].parent == index and self.parts[i].kind == "row")
        widget = self.shown[index]
        x, y = widget.center
        return OracleStep(Scroll(-visible if row > first else visible, 0, x, y), _look(widget), f"scroll {title}")

    def _drag(self, picked: int | None, target: int | None) -> OracleStep | None:
        if picked not in self.shown or target not in self.shown:
            return None
        start, end = self.shown[picked], self.shown[target]
        action = Drag(*end.center, start=start.center)
        return OracleStep(action, f"{_look(start)} {_look(end)}", f"drag {start.caption}")

    def _press(self, caption: str | None, keys: tuple[str, ...]) -> OracleStep | None:
        index = self._find("field", caption) if caption else None
        if index is not None and self.desktop.focused != index:
            return self._click(index)
        return _keys(keys)


def _look(widget: Widget) -> str:
    return f"{widget.kind} {widget.caption} {widget.cell}"


def _keys(keys: tuple[str, ...]) -> OracleStep:
    words = "press " + " ".join(keys)
    return OracleStep(Key(keys), words, words)
