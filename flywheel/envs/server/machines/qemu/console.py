"""Hands and eyes of a guest that has no server: keys, pointer and pictures of the screen through QEMU's monitor."""

import re
import time
from pathlib import Path
from typing import Any

from PIL import Image

from flywheel.actions.checks import checked
from flywheel.envs.server.machines.qemu.keymap import chord_codes, text_codes
from flywheel.envs.server.machines.qemu.qmp import Qmp, QmpError
from flywheel.errors import ActionError, InfrastructureError
from flywheel.types import Action, Click, Drag, Key, Move, Scroll, Size, Type, Wait

_AXIS = 32767  # QEMU's absolute axes run from 0 to this
_HOLD_S = 0.03  # between down and up of a chord or a button; a guest polls a USB tablet every 8 ms
_DOUBLE_S = 0.05
_TAKEN_S = 10.0


class Console:
    """One guest's keyboard, tablet and screen.

    Args:
        qmp: the guest's monitor.
        folder: where a picture is put down for a moment; not in the guest's reach.
        key_interval: seconds between typed characters, at least. The emulated keyboard holds 16 bytes, 2 to 4 keys, and
            forgets what is more, so the next key waits until its controller shows that the guest has taken the last.
        pointer: whether the machine has a tablet.
    """

    def __init__(self, qmp: Qmp, folder: Path, key_interval: float, pointer: bool) -> None:
        self._qmp = qmp
        self._picture = folder / "screen.ppm"
        self._key_interval = key_interval
        self._pointer = pointer
        self._size = Size(0, 0)

    def screenshot(self) -> Image.Image:
        """RGB, at the resolution the guest has set; 720 x 400 in text mode."""
        try:
            self._qmp.execute("screendump", {"filename": str(self._picture)})
            with Image.open(self._picture) as picture:
                image = picture.convert("RGB")
        except (OSError, SyntaxError) as error:
            raise InfrastructureError(f"QEMU gave no picture of the screen ({error}).") from error
        finally:
            self._picture.unlink(missing_ok=True)
        self._size = Size(*image.size)
        return image

    def perform(self, action: Action) -> None:
        """What a keyboard and a pointer can do; raises `ActionError` for anything else, before any event is sent."""
        width, height = self._screen_size()
        for column, row in _points(action):
            if not (0 <= column < width and 0 <= row < height):
                raise ActionError(f"The point ({column}, {row}) is outside the {width} x {height} screen.")
        match checked(action, self._size):
            case Type(text):
                self._type(text)
            case Key(keys):
                self._chord(chord_codes(keys), _HOLD_S)
            case Wait(seconds):
                time.sleep(seconds)
            case Click() | Move() | Drag() | Scroll() if not self._pointer:
                raise ActionError("This machine has no pointer; use the keyboard.")
            case Click(x, y, button, count, keys):
                self._click(x, y, button, count, chord_codes(keys))
            case Move(x, y):
                self._move(x, y)
            case Drag(x, y, start):
                self._drag(x, y, start)
            case Scroll(dy, dx, at_x, at_y):
                self._scroll(dy, dx, at_x, at_y)
            case _:
                raise ActionError(f"A machine without a server cannot do {type(action).__name__}; use keys and text.")

    def _send(self, events: list[dict[str, Any]]) -> None:
        try:
            self._qmp.execute("input-send-event", {"events": events})
        except QmpError as error:
            raise ActionError("The machine is switched off or stopped, so it takes no input.") from error

    def _screen_size(self) -> Size:
        """As it was when last looked at."""
        if self._size.width == 0:
            self.screenshot()
        return self._size

    def _type(self, text: str) -> None:
        for codes in text_codes(text):
            self._chord(codes, 0.0)
            time.sleep(self._key_interval)

    def _chord(self, codes: list[str], hold: float) -> None:
        self._send([_key(code, True) for code in codes])
        time.sleep(hold)
        self._wait_until_taken()
        self._send([_key(code, False) for code in reversed(codes)])
        self._wait_until_taken()

    def _wait_until_taken(self) -> None:
        """Bit 0 of the keyboard controller's status (port 0x64): there is a byte that the guest has not read."""
        deadline = time.monotonic() + _TAKEN_S
        while (status := re.search(r"= 0x(\w+)", self._qmp.human("i /1xb 0x64"))) and int(status.group(1), 16) & 1:
            if time.monotonic() > deadline:
                raise ActionError(f"The guest has taken no key for {_TAKEN_S:.0f} s, so the rest was not pressed.")
            time.sleep(0.002)

    def _move(self, x: int, y: int) -> None:
        width, height = self._screen_size()
        self._send([_axis("x", x, width), _axis("y", y, height)])

    def _click(self, x: int, y: int, button: str, count: int, codes: list[str]) -> None:
        self._move(x, y)
        self._send([_key(code, True) for code in codes])
        for _ in range(count):
            self._press(button)
            time.sleep(_DOUBLE_S)
        self._send([_key(code, False) for code in reversed(codes)])

    def _press(self, button: str) -> None:
        self._send([_button(button, True)])
        time.sleep(_HOLD_S)
        self._send([_button(button, False)])

    def _drag(self, x: int, y: int, start: tuple[int, int] | None) -> None:
        if start is not None:
            self._move(*start)
        time.sleep(_HOLD_S)
        self._send([_button("left", True)])
        time.sleep(_HOLD_S)
        if start is not None:  # toolkits begin a drag only when they see the pointer on its way
            self._move((start[0] + x) // 2, (start[1] + y) // 2)
            time.sleep(_HOLD_S)
        self._move(x, y)
        time.sleep(_HOLD_S)
        self._send([_button("left", False)])

    def _scroll(self, dy: int, dx: int, x: int | None, y: int | None) -> None:
        if x is not None and y is not None:
            self._move(x, y)
        notches = ["wheel-up" if dy > 0 else "wheel-down"] * abs(dy)
        for notch in notches + ["wheel-right" if dx > 0 else "wheel-left"] * abs(dx):
            self._press(notch)


def _points(action: Action) -> list[tuple[int, int]]:
    match action:
        case Click(x, y) | Move(x, y):
            return [(x, y)]
        case Drag(x, y, start):
            return [(x, y), start] if start is not None else [(x, y)]
        case Scroll(x=int() as column, y=int() as row):
            return [(column, row)]
    return []


def _key(code: str, down: bool) -> dict[str, Any]:
    return {"type": "key", "data": {"down": down, "key": {"type": "qcode", "data": code}}}


def _button(name: str, down: bool) -> dict[str, Any]:
    return {"type": "btn", "data": {"down": down, "button": name}}


def _axis(name: str, pixel: int, length: int) -> dict[str, Any]:
    return {"type": "abs", "data": {"axis": name, "value": round(pixel * _AXIS / (length - 1))}}
