"""What an action looks like on the screenshot that it answers, in pixels; drawn by the film strips."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from flywheel.types import Action, Answer, Click, Code, Done, Drag, Key, Move, Scroll, Turn, Type, Wait

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """A ring at `at` (a click), a cross (a move), or an arrow from `start` to `at` (a drag, a scroll)."""

    kind: Literal["ring", "cross", "arrow"]
    at: Point
    start: Point | None = None
    count: int = 1


def marks(turns: Iterable[Turn]) -> Iterator[Mark | None]:
    """One for each turn; the pointer is followed, for actions that happen where it is."""
    pointer: Point | None = None
    for turn in turns:
        size = turn.observation.screenshot.size if turn.observation.screenshot else None
        yield _mark(turn.action, pointer, reach=size.height // 5 if size else 40)
        pointer = _pointer_after(turn.action, pointer)


def _mark(action: Action | None, pointer: Point | None, reach: int) -> Mark | None:
    match action:
        case Click(x, y, count=count):
            return Mark("ring", (x, y), count=count)
        case Move(x, y):
            return Mark("cross", (x, y))
        case Drag(x, y, start):
            start = start or pointer
            return Mark("arrow", (x, y), start) if start else Mark("ring", (x, y))
        case Scroll(dy, dx):
            start = _pointer_after(action, pointer)
            if start is None:
                return None
            return Mark("arrow", (start[0] + _sign(dx) * reach, start[1] - _sign(dy) * reach), start)
        case _:
            return None


def _pointer_after(action: Action | None, pointer: Point | None) -> Point | None:
    match action:
        case Click(x, y) | Move(x, y) | Drag(x, y):
            return x, y
        case Scroll(x=int(x), y=int(y)):
            return x, y
        case _:
            return pointer


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def caption(action: Action | None) -> str:
    """The action in a few words."""
    match action:
        case Click(x, y, button, count, keys):
            times = {1: "", 2: "double ", 3: "triple "}.get(count, f"{count}x ")
            held = "".join(f"{key}+" for key in keys)
            return f"{held}{times}{'' if button == 'left' else button + ' '}click {x}, {y}"
        case Move(x, y):
            return f"move to {x}, {y}"
        case Drag(x, y, start):
            return f"drag {start[0]}, {start[1]} to {x}, {y}" if start else f"drag to {x}, {y}"
        case Scroll(dy, dx):
            ways = [(abs(dy), "up" if dy > 0 else "down"), (abs(dx), "right" if dx > 0 else "left")]
            return "scroll " + (", ".join(f"{way} {notches}" for notches, way in ways if notches) or "by nothing")
        case Type(text):
            return f"type “{text}”"
        case Key(keys):
            return f"press {'+'.join(keys)}"
        case Wait(seconds):
            return f"wait {seconds:g} s"
        case Done(status):
            return "done" if status == "success" else "done: cannot be done"
        case Answer(text):
            return f"answer “{text}”"
        case Code(code, language):
            return f"run {language}: {code}"
        case None:
            return "no action"
