"""Keysyms <-> keycodes of the X server, with characters that the layout lacks put on keycodes that it leaves empty.

A mapping stays until its keycode is needed for another character: clients look a key up when they handle it, not when
it was pressed, so a keycode that changes its meaning too soon types the new character twice.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from .ping import wait_for_client

SETTLE = 0.06
"""Seconds that clients get to hear of a new mapping."""
CONSUME = 0.4
"""Seconds that a client which answers no pings gets to handle what was typed, before a keycode changes its meaning."""
PATIENCE = 5.0
"""Seconds to wait for a client that does."""
_FIRST = 9
"""Keycode 8 is evdev's 0, which toolkits take for no key at all."""


class Keyboard:
    """The map of one X connection; `load` after connecting and whenever the server says that the map changed.

    Only empty keycodes are lent, 18 of Xvfb's: browsers know media keys by their keycode, whatever it means.
    """

    def __init__(self) -> None:
        self._codes: dict[int, tuple[int, bool]] = {}
        self._lent: OrderedDict[int, int] = OrderedDict()  # keysym -> keycode of ours, the longest unused first
        self._spare: list[int] = []

    def load(self, display: Any) -> None:
        first = display.display.info.min_keycode
        rows = display.get_keyboard_mapping(first, display.display.info.max_keycode - first + 1)
        self._codes, self._spare = {}, []
        for code, row in enumerate(rows, first):
            if code >= _FIRST and not any(row):
                self._spare.append(code)
                continue
            for shifted, symbol in enumerate(list(row)[:2]):
                if symbol and symbol not in self._codes:
                    self._codes[symbol] = (code, bool(shifted))
        kept = {symbol: code for symbol, code in self._lent.items() if self._codes.get(symbol, (0,))[0] == code}
        self._lent = OrderedDict(kept)

    def code(self, display: Any, keysym: int) -> tuple[int, bool]:
        """(keycode, needs shift); puts the keysym on the keyboard if it is not there."""
        self.lend(display, [keysym])
        return self._codes[keysym]

    @property
    def room(self) -> int:
        """How many characters that the layout lacks can be typed in one go."""
        return len(self._spare) + len(self._lent)

    def missing(self, keysym: int) -> bool:
        """Whether the layout itself lacks the keysym."""
        return keysym in self._lent or keysym not in self._codes

    def lend(self, display: Any, keysyms: Sequence[int]) -> None:
        """Make all of `keysyms` typable at once; those that the layout lacks may be at most `room`."""
        for symbol in keysyms:
            if symbol in self._lent:
                self._lent.move_to_end(symbol)
        new = [symbol for symbol in dict.fromkeys(keysyms) if symbol not in self._codes]
        if not new:
            return
        if len(new) > len(self._spare) and not wait_for_client(display, PATIENCE):
            time.sleep(CONSUME)
        rows: dict[int, int] = {}
        for symbol in new:
            if self._spare:
                code = self._spare.pop()
            else:
                gone, code = self._lent.popitem(last=False)
                del self._codes[gone]
            self._codes[symbol], self._lent[symbol] = (code, False), code
            rows[code] = symbol
        for first, symbols in _runs(rows):
            display.change_keyboard_mapping(first, [(symbol, symbol) for symbol in symbols])
        display.sync()
        time.sleep(SETTLE)


def _runs(rows: dict[int, int]) -> Iterator[tuple[int, list[int]]]:
    """Keycodes that follow each other change in one request: clients read the whole map again after each."""
    start, symbols = 0, list[int]()
    for code in sorted(rows):
        if code != start + len(symbols):
            if symbols:
                yield start, symbols
            start, symbols = code, []
        symbols.append(rows[code])
    if symbols:
        yield start, symbols
