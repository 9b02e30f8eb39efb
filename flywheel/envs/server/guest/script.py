"""`python -c "import pyautogui; ..."` -> strokes, by `ast` and a whitelist; nothing is ever evaluated.

This is the hot path of OSWorld's agents: every action of theirs is such a command. A script is understood when it is a
plain list of pyautogui and time.sleep calls with literal arguments; anything else is for a child process. As pyautogui
does, unknown key names are skipped. `duration` and pyautogui's own pause of 0.1 s a call are dropped, `interval` and
sleeps are kept, because they tell two clicks from a double click.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .keys import keysym
from .strokes import BUTTONS, Button, KeyStroke, MoveTo, Pause, Stroke, Write, chord, clicks, drag, wheel

MAX_CHARACTERS = 50_000
"""Longer scripts are not looked at."""
MAX_STROKES = 20_000
MAX_PAUSE = 60.0
"""Seconds that all the sleeps of a script may take together; longer ones run in a child with a time limit."""

_IGNORED = {"duration", "tween", "logScreenshot", "_pause", "mouseDownUp"}
_POINT = ("x", "y")
_OFFSET = ("xOffset", "yOffset")
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "click": (*_POINT, "clicks", "interval", "button", "duration", "tween"),
    "leftClick": (*_POINT, "interval", "duration", "tween"),
    "rightClick": (*_POINT, "interval", "duration", "tween"),
    "middleClick": (*_POINT, "interval", "duration", "tween"),
    "doubleClick": (*_POINT, "interval", "button", "duration", "tween"),
    "tripleClick": (*_POINT, "interval", "button", "duration", "tween"),
    "mouseDown": (*_POINT, "button", "duration", "tween"),
    "mouseUp": (*_POINT, "button", "duration", "tween"),
    "moveTo": (*_POINT, "duration", "tween"),
    "move": (*_OFFSET, "duration", "tween"),
    "moveRel": (*_OFFSET, "duration", "tween"),
    "dragTo": (*_POINT, "duration", "tween", "button"),
    "drag": (*_OFFSET, "duration", "tween", "button"),
    "dragRel": (*_OFFSET, "duration", "tween", "button"),
    "scroll": ("clicks", *_POINT),
    "vscroll": ("clicks", *_POINT),
    "hscroll": ("clicks", *_POINT),
    "write": ("message", "interval"),
    "typewrite": ("message", "interval"),
    "press": ("keys", "presses", "interval"),
    "keyDown": ("key",),
    "keyUp": ("key",),
    "sleep": ("seconds",),
}


class _UnknownError(Exception):
    """The script is for a real interpreter."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What the script calls the two modules."""

    pyautogui: set[str]
    time: set[str]


def read_script(code: str) -> list[Stroke] | None:
    """The strokes of a pyautogui script; None when it is anything else."""
    if len(code) > MAX_CHARACTERS:
        return None
    names = _Names(set(), set())
    strokes: list[Stroke] = []
    try:
        for statement in ast.parse(code).body:
            strokes += _statement(statement, names)
            if len(strokes) > MAX_STROKES:
                return None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, OverflowError, _UnknownError):
        return None
    if not names.pyautogui or sum(each.seconds for each in strokes if isinstance(each, Pause)) > MAX_PAUSE:
        return None
    return strokes


def _statement(node: ast.stmt, names: _Names) -> list[Stroke]:
    match node:
        case ast.Import(names=modules):
            for module in modules:
                if module.name not in ("pyautogui", "time"):
                    raise _UnknownError
                getattr(names, module.name).add(module.asname or module.name)
            return []
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr="FAILSAFE" | "PAUSE")], value=value):
            _literal(value, names)
            if name in names.pyautogui:
                return []
        case ast.Expr(value=ast.Call() as call):
            return _call(call, names)
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            return []
    raise _UnknownError


def _call(node: ast.Call, names: _Names) -> list[Stroke]:
    match node.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in names.pyautogui:
            pass
        case ast.Attribute(value=ast.Name(id=module), attr="sleep" as name) if module in names.time:
            pass
        case _:
            raise _UnknownError
    positional = [_literal(argument, names) for argument in node.args]
    keywords = {keyword.arg or "": _literal(keyword.value, names) for keyword in node.keywords}
    if name == "hotkey":
        keys = positional[0] if len(positional) == 1 and isinstance(positional[0], list) else positional
        keywords.pop("interval", None)
        arguments = {"keys": keys} | keywords
    elif name in _PARAMETERS and len(positional) <= len(_PARAMETERS[name]):
        arguments = dict(zip(_PARAMETERS[name], positional, strict=False))
        if arguments.keys() & keywords.keys() or not keywords.keys() <= {*_PARAMETERS[name], *_IGNORED}:
            raise _UnknownError
        arguments |= keywords
    else:
        raise _UnknownError
    return _COMPILERS[name]({key: value for key, value in arguments.items() if key not in _IGNORED})


def _literal(node: ast.expr, names: _Names) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [_literal(element, names) for element in elements]
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in names.pyautogui:
            words = {"LEFT": "left", "MIDDLE": "middle", "RIGHT": "right", "PRIMARY": "left", "SECONDARY": "right"}
            if attribute in words or attribute.startswith("ease") or attribute == "linear":
                return words.get(attribute)
    raise _UnknownError


def _approach(arguments: dict[str, Any]) -> list[Stroke]:
    """The move that a call with coordinates begins with."""
    x, y = arguments.get("x"), arguments.get("y")
    if isinstance(x, list) and len(x) == 2 and y is None:
        x, y = x
    return [] if x is None and y is None else [MoveTo(_pixel(x), _pixel(y))]


def _pixel(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str | list):
        raise _UnknownError  # the name of an image to look for
    return int(value)


def _offset(arguments: dict[str, Any]) -> MoveTo:
    x, y = arguments.get("xOffset"), arguments.get("yOffset")
    if isinstance(x, list) and len(x) == 2 and y is None:
        x, y = x
    return MoveTo(_pixel(x) or 0, _pixel(y) or 0, relative=True)


def _button(arguments: dict[str, Any], default: str = "left") -> int:
    button = arguments.get("button", default)
    number = BUTTONS.get(button.lower()) if isinstance(button, str) else button
    if number not in (1, 2, 3):
        raise _UnknownError
    return int(number)


def _count(arguments: dict[str, Any], name: str, default: int) -> int:
    count = arguments.get(name, default)
    if not isinstance(count, int) or abs(count) > MAX_STROKES:
        raise _UnknownError
    return count


def _seconds(arguments: dict[str, Any], name: str) -> float:
    seconds = float(arguments.get(name) or 0.0)
    if not 0 <= seconds <= MAX_PAUSE:
        raise _UnknownError
    return seconds


def _click(button: str, count: int) -> Callable[[dict[str, Any]], list[Stroke]]:
    def compile_click(arguments: dict[str, Any]) -> list[Stroke]:
        times = _count(arguments, "clicks", count)
        return _approach(arguments) + clicks(_button(arguments, button), times, _seconds(arguments, "interval"))

    return compile_click


def _scroll(arguments: dict[str, Any], *, across: bool = False) -> list[Stroke]:
    notches = int(arguments["clicks"]) if "clicks" in arguments else _unknown()
    if abs(notches) > MAX_STROKES:
        raise _UnknownError
    return _approach(arguments) + (wheel(notches, 0) if across else wheel(0, notches))


def _drag_to(arguments: dict[str, Any]) -> list[Stroke]:
    end = _approach(arguments)
    return drag(end[0], _button(arguments)) if end and isinstance(end[0], MoveTo) else _unknown()


def _write(arguments: dict[str, Any]) -> list[Stroke]:
    message, interval = arguments.get("message"), _seconds(arguments, "interval")
    if isinstance(message, list):
        return _press({"keys": message, "interval": interval})
    if not isinstance(message, str):
        raise _UnknownError
    if not interval:
        return [Write(message)] if message else []
    return [stroke for each in message for stroke in (Write(each), Pause(interval))]


def _press(arguments: dict[str, Any]) -> list[Stroke]:
    keys, interval = arguments.get("keys"), _seconds(arguments, "interval")
    strokes: list[Stroke] = []
    for symbol in _keysyms(keys if isinstance(keys, list) else [keys]) * max(0, _count(arguments, "presses", 1)):
        strokes += chord([symbol])
        strokes += [Pause(interval)] if interval else []
        if len(strokes) > MAX_STROKES:
            raise _UnknownError
    return strokes


def _keysyms(names: list[Any]) -> list[int]:
    if not all(isinstance(name, str) and name for name in names):
        raise _UnknownError
    return [symbol for name in names if (symbol := keysym(name)) is not None]


def _key(arguments: dict[str, Any], *, down: bool) -> list[Stroke]:
    return [KeyStroke(symbol, down) for symbol in _keysyms([arguments.get("key")])]


def _sleep(arguments: dict[str, Any]) -> list[Stroke]:
    return [Pause(_seconds(arguments, "seconds"))]


def _unknown() -> Any:
    raise _UnknownError


_COMPILERS: dict[str, Callable[[dict[str, Any]], list[Stroke]]] = {
    "click": _click("left", 1),
    "leftClick": _click("left", 1),
    "rightClick": _click("right", 1),
    "middleClick": _click("middle", 1),
    "doubleClick": _click("left", 2),
    "tripleClick": _click("left", 3),
    "mouseDown": lambda arguments: [*_approach(arguments), Button(_button(arguments), True)],
    "mouseUp": lambda arguments: [*_approach(arguments), Button(_button(arguments), False)],
    "moveTo": _approach,
    "move": lambda arguments: [_offset(arguments)],
    "moveRel": lambda arguments: [_offset(arguments)],
    "dragTo": _drag_to,
    "drag": lambda arguments: drag(_offset(arguments), _button(arguments)),
    "dragRel": lambda arguments: drag(_offset(arguments), _button(arguments)),
    "scroll": _scroll,
    "vscroll": _scroll,
    "hscroll": lambda arguments: _scroll(arguments, across=True),
    "write": _write,
    "typewrite": _write,
    "press": _press,
    "hotkey": lambda arguments: chord(_keysyms(arguments["keys"])),
    "keyDown": lambda arguments: _key(arguments, down=True),
    "keyUp": lambda arguments: _key(arguments, down=False),
    "sleep": _sleep,
}
