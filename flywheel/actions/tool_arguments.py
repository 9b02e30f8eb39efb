"""Arguments of the `computer_use` tool <-> `Action`: the scale, the scroll unit and every spelling live here.

Source of the tool: the Qwen3-VL cookbook's `computer_use`. Two things are ours: `keys` may accompany a click (keys
held down meanwhile), and `start_coordinate` may accompany a drag.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, cast

from flywheel.actions.base import quote
from flywheel.actions.checks import checked
from flywheel.actions.keys import chord
from flywheel.errors import ActionError
from flywheel.types import Action, Answer, Click, Done, Drag, Key, Move, Scroll, Size, Type, Wait

GRID = 1000
"""Divisor of the relative grid, in both directions. Users dispute 999 or 1000; it is decided here only."""

PIXELS_PER_NOTCH = 100
"""`pixels` for one notch of the wheel: what browsers report for one. Less than a notch still turns one."""

_CLICKS: dict[str, tuple[Literal["left", "right", "middle"], int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
_CLICK_NAMES = {value: name for name, value in _CLICKS.items()}
_DIRECTIONS = {"up": (1, 0), "down": (-1, 0), "right": (0, 1), "left": (0, -1)}


def to_pixel(grid: float, extent: int) -> int:
    """Grid value (0..GRID) -> pixel (0..extent-1): the nearest one; the grid's far edge is the last pixel."""
    return min(extent - 1, math.floor(grid * extent / GRID + 0.5))


def to_grid(pixel: int, extent: int) -> int:
    """Pixel -> nearest grid value. `to_pixel` gives the pixel back up to GRID pixels, and beyond within a grid step."""
    return math.floor(pixel * GRID / extent + 0.5)


def to_notches(pixels: float) -> int:
    """Nearest whole notch, never none for a scroll that asks for some."""
    return int(math.copysign(max(1, math.floor(abs(pixels) / PIXELS_PER_NOTCH + 0.5)), pixels)) if pixels else 0


class Arguments:
    """The arguments of one call, taken out one by one; what is left in the end is refused, not ignored.

    `older` becomes True when one of the cookbook's older names was used.
    """

    def __init__(self, action: str, values: Mapping[str, Any], screen: Size) -> None:
        self.action = action
        self.screen = screen
        self.older = False
        self._values = {name: value for name, value in values.items() if value is not None}

    def take(self, name: str, *older: str) -> Any:
        """The value under `name`, or under an older name; None where it is absent."""
        if name in self._values:
            return self._values.pop(name)
        for other in older:
            if other in self._values:
                self.older = True
                return self._values.pop(other)
        return None

    def refuse(self, name: str, needs: str, value: Any) -> ActionError:
        """The error that says what `name` must be."""
        given = "; it is missing" if value is None else f", not {repr(value)[:60]}"
        return ActionError(f"{self.action} needs '{name}' to be {needs}{given}.")

    def optional_point(self, name: str, *older: str) -> tuple[int, int] | None:
        """A grid point as screen pixels."""
        value = self.take(name, *older)
        if value is None:
            return None
        if not (isinstance(value, list) and len(value) == 2 and all(map(_on_grid, value))):
            raise self.refuse(name, f"[x, y] with both from 0 to {GRID}", value)
        return to_pixel(value[0], self.screen.width), to_pixel(value[1], self.screen.height)

    def point(self, name: str, *older: str) -> tuple[int, int]:
        point = self.optional_point(name, *older)
        if point is None:
            raise self.refuse(name, f"[x, y] with both from 0 to {GRID}", None)
        return point

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number; `default` stands for a missing one."""
        value = self.take(name)
        if value is None and default is not None:
            return default
        if not (_is_number(value) and abs(value) < 1e9):
            raise self.refuse(name, "a number", value)
        return cast(float, value)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise self.refuse(name, "text", value)
        return value

    def choice(self, name: str, known: Mapping[str, Any]) -> Any:
        """What `known` holds for the word under `name`."""
        value = self.take(name)
        if not isinstance(value, str) or value not in known:
            raise self.refuse(name, " or ".join(known), value)
        return known[value]

    def keys(self, *older: str) -> tuple[str, ...]:
        """A chord, () where it is absent; older data writes it as one string, "ctrl+s"."""
        value = self.take("keys", *older)
        if value is None:
            return ()
        if isinstance(value, str):
            self.older = True
            value = [value]
        if not (isinstance(value, list) and all(isinstance(key, str) for key in value)):
            raise self.refuse("keys", 'a list of key names such as ["ctrl", "s"]', value)
        return chord(value)

    def finish(self) -> None:
        """Refuse what no reader took: an argument that is ignored is an action that means something else."""
        if self._values:
            names = ", ".join(sorted(self._values))[:60]
            raise ActionError(f"{self.action} does not take '{names}'; leave it out.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _on_grid(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= GRID


def _read_click(arguments: Arguments, *, button: Literal["left", "right", "middle"], count: int) -> Action:
    x, y = arguments.point("coordinate")
    return Click(x, y, button, count, arguments.keys("text"))


def _read_older_click(arguments: Arguments) -> Action:
    button = arguments.take("button")
    name = "left_click" if button is None else f"{button}_click"
    if name not in ("left_click", "right_click", "middle_click"):
        raise arguments.refuse("button", "left or right or middle", button)
    return _read_click(arguments, button=_CLICKS[name][0], count=1)


def _read_move(arguments: Arguments) -> Action:
    return Move(*arguments.point("coordinate"))


def _read_drag(arguments: Arguments) -> Action:
    start = arguments.optional_point("start_coordinate")
    end = arguments.optional_point("end_coordinate", "coordinate2")
    if end is None:
        return Drag(*arguments.point("coordinate"), start)
    arguments.older = True
    return Drag(*end, start or arguments.optional_point("coordinate"))


def _read_scroll(arguments: Arguments) -> Action:
    if (direction := arguments.take("direction")) is not None:
        arguments.older = True
        if not isinstance(direction, str) or direction not in _DIRECTIONS:
            raise arguments.refuse("direction", "up, down, left or right", direction)
        up, right = _DIRECTIONS[direction]
        amount = math.floor(arguments.number("amount") + 0.5)
        if amount < 0:
            raise arguments.refuse("amount", "notches in that direction, not below 0", amount)
        return _scroll_at(arguments, dy=up * amount, dx=right * amount)
    return _scroll_at(arguments, dy=to_notches(arguments.number("pixels")))


def _read_hscroll(arguments: Arguments) -> Action:
    return _scroll_at(arguments, dx=to_notches(arguments.number("pixels")))


def _scroll_at(arguments: Arguments, *, dy: int = 0, dx: int = 0) -> Action:
    x, y = arguments.optional_point("coordinate") or (None, None)
    return Scroll(dy, dx, x, y)


def _read_type(arguments: Arguments) -> Action:
    return Type(arguments.text("text"))


def _read_key(arguments: Arguments) -> Action:
    keys = arguments.keys("key", "text")
    if not keys:
        raise arguments.refuse("keys", 'a list of key names such as ["ctrl", "s"]', None)
    return Key(keys)


def _read_wait(arguments: Arguments) -> Action:
    return Wait(float(arguments.number("time", default=1.0)))  # the cookbook's wait has no argument


def _read_terminate(arguments: Arguments) -> Action:
    return Done(arguments.choice("status", {"success": "success", "failure": "failure"}))


def _read_answer(arguments: Arguments) -> Action:
    return Answer(arguments.text("text"))


Reader = Callable[[Arguments], Action]

READERS: dict[str, Reader] = {
    "key": _read_key,
    "type": _read_type,
    "mouse_move": _read_move,
    **{name: partial(_read_click, button=button, count=count) for name, (button, count) in _CLICKS.items()},
    "left_click_drag": _read_drag,
    "scroll": _read_scroll,
    "hscroll": _read_hscroll,
    "wait": _read_wait,
    "terminate": _read_terminate,
    "answer": _read_answer,
}

OLDER_READERS: dict[str, Reader] = {
    "click": _read_older_click,
    "move": _read_move,
    "drag": _read_drag,
    "hotkey": _read_key,
    "press": _read_key,
    "write": _read_type,
}


def read_arguments(values: Mapping[str, Any], screen: Size) -> tuple[Action, bool]:
    """The action that the arguments mean, and whether they use an older spelling; raises `ActionError`."""
    name = values.get("action")
    if not isinstance(name, str):
        raise ActionError(f"The call names no action; set 'action' to one of {', '.join(READERS)}.")
    reader = READERS.get(name) or OLDER_READERS.get(name)
    if reader is None:
        raise ActionError(f"There is no action {quote(name)}; use one of {', '.join(READERS)}.")
    arguments = Arguments(name, {key: value for key, value in values.items() if key != "action"}, screen)
    action = reader(arguments)
    arguments.finish()
    return checked(action, screen), arguments.older or name in OLDER_READERS


def write_arguments(action: Action, screen: Size) -> dict[str, Any]:
    """The official spelling, `action` first; raises `ActionError` for what the tool cannot say."""

    def grid(x: int, y: int) -> list[int]:
        return [to_grid(x, screen.width), to_grid(y, screen.height)]

    match checked(action, screen):
        case Click(x, y, button, count, keys) if (button, count) in _CLICK_NAMES:
            held = {"keys": list(keys)} if keys else {}
            return {"action": _CLICK_NAMES[button, count], "coordinate": grid(x, y), **held}
        case Move(x, y):
            return {"action": "mouse_move", "coordinate": grid(x, y)}
        case Drag(x, y, start):
            origin = {} if start is None else {"start_coordinate": grid(*start)}
            return {"action": "left_click_drag", **origin, "coordinate": grid(x, y)}
        case Scroll(dy, dx, x, y) if not (dy and dx):
            place = {} if x is None or y is None else {"coordinate": grid(x, y)}
            return {"action": "hscroll" if dx else "scroll", **place, "pixels": (dx or dy) * PIXELS_PER_NOTCH}
        case Type(text):
            return {"action": "type", "text": text}
        case Key(keys):
            return {"action": "key", "keys": list(keys)}
        case Wait(seconds):
            return {"action": "wait", "time": int(seconds) if seconds == int(seconds) else seconds}
        case Done(status):
            return {"action": "terminate", "status": status}
        case Answer(text):
            return {"action": "answer", "text": text}
    raise ActionError(f"computer_use cannot say {repr(action)[:80]}; use an action that its tool has.")
