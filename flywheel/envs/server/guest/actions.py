"""The JSON form of flywheel's actions -> strokes. Coordinates are pixels and must lie on the screen."""

from collections.abc import Callable, Mapping
from typing import Any

from .errors import ActionRefusedError, RefusedError
from .keys import keysym
from .strokes import BUTTONS, KeyStroke, MoveTo, Pause, Stroke, Write, chord, clicks, drag, wheel

MAX_NOTCHES = 1000
MAX_WAIT = 60.0

Size = tuple[int, int]


def read_action(action: Any, screen: Size) -> list[Stroke]:
    """The strokes of click, move, drag, scroll, type, key and wait.

    Raises `RefusedError` for what is malformed, `ActionRefusedError` for what cannot be executed on this screen.
    """
    kind = action.get("type") if isinstance(action, Mapping) else None
    if not isinstance(kind, str) or kind not in _COMPILERS:
        raise RefusedError(f"An action needs a `type`, one of {', '.join(_COMPILERS)}; it has {str(kind)[:40]!r}.")
    return _COMPILERS[kind](action, screen)


def _whole(action: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = action.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError(f"The action {action['type']} needs a whole number as `{name}`, not {str(value)[:40]!r}.")
    return value


def _text(action: Mapping[str, Any], name: str) -> str:
    value = action.get(name)
    if not isinstance(value, str):
        raise RefusedError(f"The action {action['type']} needs text as `{name}`.")
    return value


def _point(action: Mapping[str, Any], screen: Size) -> MoveTo:
    return _on_screen(_whole(action, "x"), _whole(action, "y"), screen)


def _on_screen(x: int, y: int, screen: Size) -> MoveTo:
    if not (0 <= x < screen[0] and 0 <= y < screen[1]):
        raise ActionRefusedError(f"The point ({x}, {y}) is outside the {screen[0]} x {screen[1]} screen.")
    return MoveTo(x, y)


def _keysyms(action: Mapping[str, Any]) -> list[int]:
    names = action.get("keys", [])
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise RefusedError(f"The action {action['type']} needs a list of key names as `keys`.")
    found = []
    for name in names:
        symbol = keysym(name)
        if symbol is None:
            raise ActionRefusedError(f"There is no key {name[:40]!r}; use names such as ctrl, shift, enter, f5 or a.")
        found.append(symbol)
    return found


def _click(action: Mapping[str, Any], screen: Size) -> list[Stroke]:
    number = BUTTONS.get(str(action.get("button", "left")))
    count = _whole(action, "count", 1)
    if number is None or not 1 <= count <= 10:
        raise RefusedError("A click has the button left, middle or right and a count from 1 to 10.")
    held = _keysyms(action)
    down: list[Stroke] = [KeyStroke(each, True) for each in held]
    up: list[Stroke] = [KeyStroke(each, False) for each in reversed(held)]
    return [_point(action, screen), *down, *clicks(number, count), *up]


def _drag(action: Mapping[str, Any], screen: Size) -> list[Stroke]:
    start = action.get("start")
    if start is not None and not (
        isinstance(start, list | tuple) and len(start) == 2 and all(type(each) is int for each in start)
    ):
        raise RefusedError("A drag has no `start`, or two whole numbers as its `start`.")
    approach = [] if start is None else [_on_screen(start[0], start[1], screen)]
    return [*approach, *drag(_point(action, screen))]


def _scroll(action: Mapping[str, Any], screen: Size) -> list[Stroke]:
    dx, dy = _whole(action, "dx", 0), _whole(action, "dy", 0)
    if abs(dx) > MAX_NOTCHES or abs(dy) > MAX_NOTCHES:
        raise ActionRefusedError(f"A scroll turns at most {MAX_NOTCHES} notches.")
    here = action.get("x") is None and action.get("y") is None
    return [*([] if here else [_point(action, screen)]), *wheel(dx, dy)]


def _key(action: Mapping[str, Any], screen: Size) -> list[Stroke]:
    symbols = _keysyms(action)
    if not symbols:
        raise RefusedError("The action key needs at least one key name in `keys`.")
    return chord(symbols)


def _wait(action: Mapping[str, Any], screen: Size) -> list[Stroke]:
    seconds = action.get("seconds", 1.0)
    if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT:
        raise RefusedError(f"The action wait needs `seconds` from 0 to {MAX_WAIT:.0f}.")
    return [Pause(float(seconds))]


_COMPILERS: dict[str, Callable[[Mapping[str, Any], Size], list[Stroke]]] = {
    "click": _click,
    "move": lambda action, screen: [_point(action, screen)],
    "drag": _drag,
    "scroll": _scroll,
    "type": lambda action, screen: [Write(_text(action, "text"))],
    "key": _key,
    "wait": _wait,
}
