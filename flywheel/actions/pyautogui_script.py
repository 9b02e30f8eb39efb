"""A few pyautogui calls <-> one `Action`. The text is parsed against a whitelist and never run.

A script may move, press, hold and wait its way to one action: `moveTo` + `click` is a click, `mouseDown` + `moveTo` +
`mouseUp` is a drag, `keyDown` + `press` + `keyUp` is a chord. Timing arguments (`duration`, `interval`, ...) and a
sleep beside an action are dropped, because the environment settles after every action by itself. Anything that amounts
to two actions is refused.
"""

from collections.abc import Callable
from typing import Any, Literal

from flywheel.actions.checks import checked
from flywheel.actions.keys import PYAUTOGUI_NAMES, chord, key_name
from flywheel.actions.pyautogui_calls import read_calls
from flywheel.errors import ActionError
from flywheel.types import Action, Click, Done, Drag, Key, Move, Scroll, Size, Type, Wait

WORDS: dict[str, Action] = {"DONE": Done("success"), "FAIL": Done("failure"), "WAIT": Wait()}
"""OSWorld's special answers."""

_CLICKS: dict[str, tuple[Literal["left", "right", "middle"], int]] = {
    "click": ("left", 1),
    "leftClick": ("left", 1),
    "rightClick": ("right", 1),
    "middleClick": ("middle", 1),
    "doubleClick": ("left", 2),
    "tripleClick": ("left", 3),
}
_CLICK_NAMES = {value: name for name, value in _CLICKS.items() if name != "leftClick"}
_BUTTONS = {"left": "left", "primary": "left", "right": "right", "secondary": "right", "middle": "middle"}


def read_script(script: str, screen: Size) -> Action:
    """The one action that `script`, or one of `WORDS`, amounts to; raises `ActionError`. Coordinates are pixels."""
    if script.strip() in WORDS:
        return WORDS[script.strip()]
    hand = _Hand()
    for name, arguments in read_calls(script):
        hand.play(name, arguments)
    return checked(hand.action(), screen)


class _Hand:
    """Plays calls one after another and notes the actions that they amount to."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._pointer: tuple[int, int] | None = None  # where a moveTo left it that no action has used yet
        self._pressed: tuple[int, int] | None = None  # where the mouse button went down
        self._button_down = False
        self._held: list[str] = []
        self._chord_used = False
        self._slept: float | None = None

    def play(self, name: str, arguments: dict[str, Any]) -> None:
        if self._button_down and name not in ("moveTo", "mouseUp", "dragTo", "sleep"):
            raise ActionError(f"{name} while the mouse button is down is no single action; use dragTo for a drag.")
        plays: dict[str, Callable[[dict[str, Any]], None]] = {
            "moveTo": self._move,
            "dragTo": self._drag,
            "mouseDown": self._mouse_down,
            "mouseUp": self._mouse_up,
            "write": self._type,
            "typewrite": self._type,
            "press": self._press,
            "hotkey": self._hotkey,
            "keyDown": self._key_down,
            "keyUp": self._key_up,
            "sleep": self._sleep,
        }
        if name in _CLICKS:
            self._click(*_CLICKS[name], arguments)
        elif name in ("scroll", "vscroll", "hscroll"):
            self._scroll(arguments, horizontal=name == "hscroll")
        else:
            plays[name](arguments)

    def action(self) -> Action:
        """What it amounts to; raises `ActionError` unless that is exactly one action."""
        if self._button_down or self._held:
            raise ActionError("A button or key is still held down at the end; release it with mouseUp or keyUp.")
        self._flush_move()
        if not self._actions and self._slept is not None:
            return Wait(self._slept)
        if len(self._actions) != 1:
            count = len(self._actions) or "no"
            raise ActionError(f"The script amounts to {count} actions; give exactly one a turn.")
        return self._actions[0]

    def _click(self, button: Literal["left", "right", "middle"], count: int, arguments: dict[str, Any]) -> None:
        if "button" in arguments:
            button = _button(arguments)
        count = _whole(arguments, "clicks", count)
        at = self._place(arguments)
        if at is None:
            raise ActionError("A click needs its coordinates; write pyautogui.click(x, y).")
        self._add(Click(*at, button, count, self._use_chord()))

    def _move(self, arguments: dict[str, Any]) -> None:
        at = _point(arguments)
        if at is None:
            raise ActionError("moveTo needs its coordinates; write pyautogui.moveTo(x, y).")
        if not self._button_down:
            self._flush_move()
        self._pointer = at

    def _drag(self, arguments: dict[str, Any]) -> None:
        end = _point(arguments)
        if end is None or self._button_down or _button(arguments) != "left":
            raise ActionError("dragTo needs coordinates and the left button; write pyautogui.dragTo(x, y).")
        start, self._pointer = self._pointer, None
        self._refuse_held("A drag")
        self._add(Drag(*end, start))

    def _mouse_down(self, arguments: dict[str, Any]) -> None:
        if _button(arguments) != "left":
            raise ActionError("Only the left button can be held down; use rightClick or middleClick.")
        self._refuse_held("A drag")
        self._pressed, self._button_down = self._place(arguments), True

    def _mouse_up(self, arguments: dict[str, Any]) -> None:
        if not self._button_down:
            raise ActionError("mouseUp comes without mouseDown; press the button first or use click.")
        start, end = self._pressed, self._place(arguments)
        self._pressed, self._button_down = None, False
        if end is not None and end != start:
            self._add(Drag(*end, start))
        elif start is not None:
            self._add(Click(*start))
        else:
            raise ActionError("mouseDown and mouseUp without coordinates say nothing of where; add them.")

    def _scroll(self, arguments: dict[str, Any], *, horizontal: bool) -> None:
        if "clicks" not in arguments:
            raise ActionError("A scroll needs its amount in notches; write pyautogui.scroll(-3).")
        amount = _whole(arguments, "clicks", 0)
        x, y = self._place(arguments) or (None, None)
        self._refuse_held("A scroll")
        self._add(Scroll(dx=amount, x=x, y=y) if horizontal else Scroll(dy=amount, x=x, y=y))

    def _type(self, arguments: dict[str, Any]) -> None:
        text = arguments.get("message")
        if not isinstance(text, str):
            raise ActionError("write needs its text; write pyautogui.write('hello').")
        self._refuse_held("Typing")
        self._flush_move()
        self._add(Type(text))

    def _press(self, arguments: dict[str, Any]) -> None:
        if _whole(arguments, "presses", 1) != 1:
            raise ActionError("A key pressed several times is several actions; press it once a turn.")
        names = _names(arguments)
        if len(names) > 1:
            raise ActionError("press takes its keys one after another; for keys together write pyautogui.hotkey.")
        self._strike(names)

    def _hotkey(self, arguments: dict[str, Any]) -> None:
        self._strike(_names(arguments))

    def _strike(self, names: list[str]) -> None:
        self._flush_move()
        self._add(Key(chord([*self._use_chord(), *names])))

    def _key_down(self, arguments: dict[str, Any]) -> None:
        self._held.append(_key(arguments))
        self._chord_used = False

    def _key_up(self, arguments: dict[str, Any]) -> None:
        key = _key(arguments)
        if key not in self._held:
            raise ActionError(f"keyUp('{key}') comes without its keyDown; press the key first.")
        if not self._chord_used:
            self._flush_move()
            self._add(Key(chord(self._use_chord())))
        self._held.remove(key)

    def _sleep(self, arguments: dict[str, Any]) -> None:
        seconds = arguments.get("seconds")
        if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
            raise ActionError("sleep needs a number of seconds; write time.sleep(1).")
        self._slept = (self._slept or 0.0) + seconds

    def _add(self, action: Action) -> None:
        self._actions.append(action)

    def _flush_move(self) -> None:
        if self._pointer is not None:
            self._add(Move(*self._pointer))
            self._pointer = None

    def _use_chord(self) -> tuple[str, ...]:
        self._chord_used = True
        return chord(self._held) if self._held else ()

    def _refuse_held(self, what: str) -> None:
        if self._held:
            raise ActionError(f"{what} with keys held down is not supported; only clicks and key presses are.")

    def _place(self, arguments: dict[str, Any]) -> tuple[int, int] | None:
        """Where a call acts: its own coordinates, else where moveTo left the pointer."""
        at, moved = _point(arguments), self._pointer
        if at is not None and moved is not None and at != moved and not self._button_down:
            self._flush_move()
        self._pointer = None
        return at or moved


def _point(arguments: dict[str, Any]) -> tuple[int, int] | None:
    x: Any = arguments.get("x")
    y: Any = arguments.get("y")
    if isinstance(x, list) and len(x) == 2 and y is None:
        x, y = x
    if x is None and y is None:
        return None
    if not all(isinstance(value, int | float) and abs(value) < 1e9 for value in (x, y)):
        raise ActionError("Coordinates must be two numbers; write pyautogui.click(x, y).")
    return round(x), round(y)


def _whole(arguments: dict[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int):
        raise ActionError(f"'{name}' must be a whole number, not {repr(value)[:40]}.")
    return value


def _button(arguments: dict[str, Any]) -> Literal["left", "right", "middle"]:
    button = arguments.get("button", "left")
    if not isinstance(button, str) or button not in _BUTTONS:
        raise ActionError(f"There is no mouse button {repr(button)[:40]}; use 'left', 'right' or 'middle'.")
    return _BUTTONS[button]  # type: ignore[return-value]


def _key(arguments: dict[str, Any]) -> str:
    key = arguments.get("key")
    if not isinstance(key, str):
        raise ActionError("keyDown and keyUp need one key name; write pyautogui.keyDown('ctrl').")
    return key_name(key)


def _names(arguments: dict[str, Any]) -> list[str]:
    keys = arguments.get("keys")
    names: list[Any] = keys if isinstance(keys, list) else [keys]
    if len(names) == 1 and isinstance(names[0], list):
        names = names[0]
    if not names or not all(isinstance(name, str) for name in names):
        raise ActionError("press and hotkey need key names; write pyautogui.hotkey('ctrl', 's').")
    return names


def write_script(action: Action, screen: Size) -> str:
    """Calls, or a word, that `read_script` reads as `action`; raises `ActionError` for what cannot be said."""
    match checked(action, screen):
        case Click(x, y, button, count, keys):
            name = _CLICK_NAMES.get((button, count))
            click = f"{name}({x}, {y})" if name else f"click({x}, {y}, clicks={count}, button={button!r})"
            down = [f"keyDown({_spelled(key)})" for key in keys]
            up = [f"keyUp({_spelled(key)})" for key in reversed(keys)]
            return _lines(*down, click, *up)
        case Move(x, y):
            return _lines(f"moveTo({x}, {y})")
        case Drag(x, y, start):
            approach = [] if start is None else [f"moveTo({start[0]}, {start[1]})"]
            return _lines(*approach, f"dragTo({x}, {y}, button='left')")
        case Scroll(dy, dx, x, y) if not (dy and dx):
            place = "" if x is None else f", x={x}, y={y}"
            return _lines(f"{'hscroll' if dx else 'scroll'}({dx or dy}{place})")
        case Type(text):
            return _lines(f"write({text!r})")
        case Key((key,)):
            return _lines(f"press({_spelled(key)})")
        case Key(keys):
            return _lines(f"hotkey({', '.join(map(_spelled, keys))})")
        case Wait(seconds):
            return f"time.sleep({seconds})"
        case Done(status):
            return "DONE" if status == "success" else "FAIL"
    raise ActionError(f"pyautogui cannot say {repr(action)[:80]}; use an action that it has a call for.")


def _lines(*calls: str) -> str:
    return "\n".join(f"pyautogui.{call}" for call in calls)


def _spelled(key: str) -> str:
    return repr(PYAUTOGUI_NAMES.get(key, key))
