"""What hands do: the few movements that every action and every pyautogui call comes down to."""

from dataclasses import dataclass

BUTTONS = {"left": 1, "primary": 1, "middle": 2, "right": 3, "secondary": 3}
"""X's numbers of the mouse buttons."""
WHEEL_UP, WHEEL_DOWN, WHEEL_LEFT, WHEEL_RIGHT = 4, 5, 6, 7

GLIDE = 12
"""Motion events of a drag: toolkits begin to drag after 8 pixels and want to see the pointer arrive."""
HOLD = 0.05
"""Seconds that a drag rests at both ends: drop targets are asked asynchronously."""


@dataclass(frozen=True, slots=True)
class MoveTo:
    """Pixels; None leaves a coordinate as it is. `relative` adds to where the pointer is. `glide` is motion events."""

    x: int | None
    y: int | None
    relative: bool = False
    glide: int = 1


@dataclass(frozen=True, slots=True)
class Button:
    """A mouse button by X's number goes down or up."""

    number: int
    down: bool


@dataclass(frozen=True, slots=True)
class KeyStroke:
    """A key by its keysym goes down or up."""

    keysym: int
    down: bool


@dataclass(frozen=True, slots=True)
class Write:
    """Text is typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds."""

    seconds: float


Stroke = MoveTo | Button | KeyStroke | Write | Pause


def clicks(number: int, count: int, interval: float = 0.0) -> list[Stroke]:
    """`count` clicks of one button, `interval` seconds apart."""
    strokes: list[Stroke] = []
    for index in range(count):
        if index and interval:
            strokes.append(Pause(interval))
        strokes += [Button(number, True), Button(number, False)]
    return strokes


def wheel(dx: int, dy: int) -> list[Stroke]:
    """Notches right and up."""
    across = clicks(WHEEL_RIGHT if dx > 0 else WHEEL_LEFT, abs(dx))
    return across + clicks(WHEEL_UP if dy > 0 else WHEEL_DOWN, abs(dy))


def chord(keysyms: list[int]) -> list[Stroke]:
    """Keys go down in order and up in reverse."""
    down: list[Stroke] = [KeyStroke(each, True) for each in keysyms]
    return down + [KeyStroke(each, False) for each in reversed(keysyms)]


def drag(end: MoveTo, number: int = 1) -> list[Stroke]:
    """Press here, glide to `end`, release there."""
    glide = MoveTo(end.x, end.y, end.relative, GLIDE)
    return [Button(number, True), Pause(HOLD), glide, Pause(HOLD), Button(number, False)]
