"""What every action must satisfy, whichever text it was read from or will be written to."""

import math

from flywheel.actions.keys import chord
from flywheel.errors import ActionError
from flywheel.types import Action, Answer, Click, Code, Drag, Key, Move, Scroll, Size, Type, Wait

MAX_NOTCHES = 100
"""A model can write any number; a desktop turns the wheel notch by notch."""

MAX_WAIT_SECONDS = 60.0
"""A waiting episode holds a desktop."""

MAX_CLICKS = 3
"""Beyond a triple click no desktop distinguishes counts."""


def checked(action: Action, screen: Size) -> Action:
    """`action` itself; raises `ActionError` when it lies off the screen or holds a value out of bounds.

    Key names must be canonical (see `keys.py`), so that equal actions are equal values.
    """
    match action:
        case Click(x, y, _, count, keys):
            _check_point(x, y, screen)
            _check_range("The click count", count, 1, MAX_CLICKS)
            if keys:
                _check_keys(keys)
        case Move(x, y):
            _check_point(x, y, screen)
        case Drag(x, y, start):
            _check_point(x, y, screen)
            if start is not None:
                _check_point(*start, screen)
        case Scroll(dy, dx, x, y):
            _check_range("The scroll amount in notches", dy, -MAX_NOTCHES, MAX_NOTCHES)
            _check_range("The scroll amount in notches", dx, -MAX_NOTCHES, MAX_NOTCHES)
            if x is not None and y is not None:
                _check_point(x, y, screen)
            elif x is not None or y is not None:
                raise ActionError("A scroll has only one of x and y; give both or neither.")
        case Type(text) | Answer(text) | Code(text):
            _check_text(text)
        case Key(keys):
            _check_keys(keys)
        case Wait(seconds):
            _check_range("The time to wait in seconds", seconds, 0, MAX_WAIT_SECONDS)
    return action


def _check_point(x: int, y: int, screen: Size) -> None:
    if not (0 <= x < screen.width and 0 <= y < screen.height):
        raise ActionError(
            f"({x}, {y}) lies outside the {screen.width} x {screen.height} screen; "
            f"x goes from 0 to {screen.width - 1} and y from 0 to {screen.height - 1}."
        )


def _check_range(what: str, value: float, low: float, high: float) -> None:
    if not (low <= value <= high and math.isfinite(value)):
        raise ActionError(f"{what} must be from {low} to {high}, not {value}.")


def _check_keys(keys: tuple[str, ...]) -> None:
    canonical = chord(keys)
    if canonical != keys:
        raise ActionError(f"Keys {keys} are not in canonical form; write {canonical}.")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ActionError("The text holds half of a surrogate pair, which nothing can type; leave it out.") from error
