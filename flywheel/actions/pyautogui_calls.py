"""Python text -> the pyautogui calls in it, by `ast` and a whitelist. Nothing is ever evaluated."""

import ast
from typing import Any

from flywheel.actions.base import quote
from flywheel.errors import ActionError

Call = tuple[str, dict[str, Any]]

_TIMING = {"duration", "interval", "tween", "logScreenshot", "_pause"}

# call -> its positional parameters, in pyautogui's order
_PARAMETERS = {
    "click": ("x", "y", "clicks", "interval", "button", "duration"),
    "leftClick": ("x", "y"),
    "rightClick": ("x", "y"),
    "middleClick": ("x", "y"),
    "doubleClick": ("x", "y", "interval", "button"),
    "tripleClick": ("x", "y", "interval", "button"),
    "moveTo": ("x", "y", "duration"),
    "dragTo": ("x", "y", "duration", "tween", "button"),
    "mouseDown": ("x", "y", "button"),
    "mouseUp": ("x", "y", "button"),
    "scroll": ("clicks", "x", "y"),
    "vscroll": ("clicks", "x", "y"),
    "hscroll": ("clicks", "x", "y"),
    "write": ("message", "interval"),
    "typewrite": ("message", "interval"),
    "press": ("keys", "presses", "interval"),
    "keyDown": ("key",),
    "keyUp": ("key",),
    "sleep": ("seconds",),
}


def read_calls(script: str) -> list[Call]:
    """The calls of a script in order, with their arguments by name; raises `ActionError` on anything else."""
    try:
        body = ast.parse(script.strip()).body
        return [_call(node) for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ActionError("The answer is not valid Python; write one call such as pyautogui.click(x, y).") from error


def _call(statement: ast.stmt) -> Call:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        raise ActionError(f"Line {statement.lineno} is no plain call; write only calls such as pyautogui.click(x, y).")
    call = statement.value
    match call.func:
        case ast.Attribute(value=ast.Name(id="pyautogui" | "pg"), attr=name) if name in _PARAMETERS or name == "hotkey":
            pass
        case ast.Attribute(value=ast.Name(id="time"), attr="sleep" as name):
            pass
        case other:
            known = ", ".join([*_PARAMETERS, "hotkey"])
            raise ActionError(f"The call {quote(ast.unparse(other))} is not allowed; use pyautogui's {known}.")
    positional = [_constant(argument) for argument in call.args]
    if name == "hotkey":
        return name, {"keys": positional}
    parameters = _PARAMETERS[name]
    if len(positional) > len(parameters):
        raise ActionError(f"{name} takes at most {len(parameters)} positional arguments, not {len(positional)}.")
    arguments = dict(zip(parameters, positional, strict=False))
    for keyword in call.keywords:
        if keyword.arg in _TIMING:
            continue
        if keyword.arg is None or keyword.arg not in parameters or keyword.arg in arguments:
            raise ActionError(f"{name} does not take '{keyword.arg}' there; see pyautogui's documentation.")
        arguments[keyword.arg] = _constant(keyword.value)
    return name, {key: value for key, value in arguments.items() if key not in _TIMING and value is not None}


def _constant(node: ast.expr) -> Any:
    """Numbers, text, and tuples or lists of them; nothing that would have to be evaluated."""
    match node:
        case ast.Constant(value=int() | float() | str() | None as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [_constant(element) for element in elements]
    raise ActionError(f"{quote(ast.unparse(node))} is no plain number or text; write the value itself.")
