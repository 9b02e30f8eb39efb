"""Pointer and keyboard of the desktop, through XTEST over one persistent connection; one script at a time."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from Xlib import X
from Xlib.ext import xtest

from .connection import Connection
from .keyboard import Keyboard
from .keys import CAPS_LOCK, MODIFIERS, SHIFT, characters
from .strokes import Button, KeyStroke, MoveTo, Pause, Stroke, Write

FOCUS = 0.05
"""Seconds between a click or a chord and the next key: the window manager gives the focus asynchronously."""
STEP = 0.008
"""Seconds between the motion events of a drag."""
BURST = 40
"""Characters that are typed between two round trips to the server."""


class Hand:
    """Performs strokes. Whatever a failed script holds down is let go."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        self._keyboard = Keyboard()
        self._held: dict[int, list[tuple[int, bool]]] = {}  # keysym -> what was pressed for it
        self._buttons: set[int] = set()
        self._calm_at = 0.0
        connection.opened = self._opened
        connection.remapped = self._keyboard.load

    def screen(self) -> tuple[int, int]:
        """Width and height in pixels."""
        with self._connection.use() as display:
            geometry = display.screen().root.get_geometry()
            return geometry.width, geometry.height

    def position(self) -> tuple[int, int]:
        """Where the pointer is."""
        with self._connection.use() as display:
            pointer = display.screen().root.query_pointer()
            return pointer.root_x, pointer.root_y

    def play(self, strokes: Sequence[Stroke]) -> None:
        """Perform strokes in order; keys and buttons that are still down afterwards stay down, unless this fails."""
        with self._turn:
            try:
                for stroke in strokes:
                    if isinstance(stroke, Pause):
                        time.sleep(stroke.seconds)
                    else:
                        with self._connection.use() as display:
                            self._perform(display, stroke)
                with self._connection.use() as display:
                    display.sync()
            except BaseException:
                self._let_go()
                raise

    def _opened(self, display: Any) -> None:
        self._held.clear()
        self._buttons.clear()
        self._keyboard.load(display)

    def _let_go(self) -> None:
        with self._connection.use() as display:
            for symbol in list(self._held):
                self._key(display, symbol, down=False)
            for number in list(self._buttons):
                self._button(display, number, down=False)
            display.sync()

    def _perform(self, display: Any, stroke: Stroke) -> None:
        match stroke:
            case MoveTo():
                self._move(display, stroke)
            case Button(number, down):
                self._button(display, number, down=down)
            case KeyStroke(symbol, down):
                self._wait_for_focus(display)
                self._key(display, symbol, down=down)
            case Write(text):
                self._wait_for_focus(display)
                self._write(display, text)

    def _move(self, display: Any, stroke: MoveTo) -> None:
        root = display.screen().root
        pointer, geometry = root.query_pointer(), root.get_geometry()
        here = (pointer.root_x, pointer.root_y)
        if stroke.relative:
            there = (here[0] + (stroke.x or 0), here[1] + (stroke.y or 0))
        else:
            there = (here[0] if stroke.x is None else stroke.x, here[1] if stroke.y is None else stroke.y)
        end_x = min(max(there[0], 0), geometry.width - 1)
        end_y = min(max(there[1], 0), geometry.height - 1)
        for step in range(1, stroke.glide + 1):
            x = here[0] + (end_x - here[0]) * step // stroke.glide
            y = here[1] + (end_y - here[1]) * step // stroke.glide
            xtest.fake_input(display, X.MotionNotify, x=x, y=y)
            if stroke.glide > 1:
                display.sync()
                time.sleep(STEP)

    def _button(self, display: Any, number: int, *, down: bool) -> None:
        xtest.fake_input(display, X.ButtonPress if down else X.ButtonRelease, number)
        (self._buttons.add if down else self._buttons.discard)(number)
        if number <= 3 and not down:
            self._calm_at = time.monotonic() + FOCUS

    def _key(self, display: Any, symbol: int, *, down: bool) -> None:
        if not down:
            pressed = self._held.pop(symbol, None) or [self._keyboard.code(display, symbol)]
            for code, _ in reversed(pressed):
                xtest.fake_input(display, X.KeyRelease, code)
            if symbol in MODIFIERS - {SHIFT}:
                self._calm_at = time.monotonic() + FOCUS
            return
        code, shift = self._keyboard.code(display, symbol)
        shifts = [self._keyboard.code(display, SHIFT)] if shift and SHIFT not in self._held else []
        self._held[symbol] = [*shifts, (code, shift)]
        for each, _ in self._held[symbol]:
            xtest.fake_input(display, X.KeyPress, each)

    def _write(self, display: Any, text: str) -> None:
        """Caps Lock is lifted meanwhile, so that the text arrives as it is written."""
        locked = bool(display.screen().root.query_pointer().mask & X.LockMask)
        if locked:
            self._tap(display, CAPS_LOCK)
        try:
            symbols = characters(text)
            while symbols:
                part = self._typable(symbols)
                self._keyboard.lend(display, part)
                for index, symbol in enumerate(part, 1):
                    self._tap(display, symbol)
                    if index % BURST == 0:
                        display.sync()
                symbols = symbols[len(part) :]
        finally:
            if locked:
                self._tap(display, CAPS_LOCK)

    def _typable(self, symbols: list[int]) -> list[int]:
        """The beginning that the spare keycodes suffice for."""
        missing: set[int] = set()
        for index, symbol in enumerate(symbols):
            if self._keyboard.missing(symbol):
                missing.add(symbol)
                if len(missing) > self._keyboard.room:
                    return symbols[:index]
        return symbols

    def _tap(self, display: Any, symbol: int) -> None:
        self._key(display, symbol, down=True)
        self._key(display, symbol, down=False)

    def _wait_for_focus(self, display: Any) -> None:
        if not self._held and (early := self._calm_at - time.monotonic()) > 0:
            display.sync()
            time.sleep(early)
