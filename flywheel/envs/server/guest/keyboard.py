"""Keysyms <-> keycodes of the X server, with characters that the layout lacks put on keycodes that nobody types.

A mapping stays until its keycode is needed for another character: clients look a key up when they handle it, not when
it was pressed, so a keycode that changes its meaning too soon types the new character twice.

Few requests change many keycodes, because clients read the whole map again after each; openbox takes 0.1 s for it.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from .keys import MODIFIERS
from .ping import wait_for_client

SETTLE = 0.06
"""Seconds that clients get to hear of a new mapping."""
CONSUME = 0.4
"""Seconds that a client which answers no pings gets to handle what was typed, before a keycode changes its meaning."""
PATIENCE = 5.0
"""Seconds to wait for a client that does."""

_FIRST = 9
"""Keycode 8 is evdev's 0, which toolkits take for no key at all."""
_MEDIA = range(0x1008FE00, 0x10090000)
"""Keysyms of media keys. Their keycodes are lent as well."""
_BROWSER = {121, 122, 123, 124, *range(136, 147), 150, 151, 163, 164, 166, 167, *range(171, 175), 180, 181}
_BROWSER |= {*range(191, 203), 225, 232, 233, 237, 238}
"""Except those that Chromium acts on by their number, whatever they mean: volume, copy, back, home, reload, F13..."""


class Keyboard:
    """The map of one X connection; `load` after connecting and whenever the server says that the map changed."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}  # keycode -> keysyms by level
        self._codes: dict[int, tuple[int, bool]] = {}
        self._lent: OrderedDict[int, int] = OrderedDict()  # keysym -> keycode of ours, the longest unused first
        self._spare: list[int] = []  # the best one last

    def load(self, display: Any) -> None:
        first = display.display.info.min_keycode
        rows = display.get_keyboard_mapping(first, display.display.info.max_keycode - first + 1)
        self._rows = {code: list(row) for code, row in enumerate(rows, first)}
        self._codes = {}
        for code, row in self._rows.items():
            for shifted, symbol in enumerate(row[:2]):
                if symbol and symbol not in self._codes:
                    self._codes[symbol] = (code, bool(shifted))
        kept = {symbol: code for symbol, code in self._lent.items() if self._codes.get(symbol, (0,))[0] == code}
        self._lent = OrderedDict(kept)
        self._spare = self._lendable()

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
        changed = []
        for symbol in new:
            code = self._spare.pop() if self._spare else self._lent.popitem(last=False)[1]
            for gone in self._rows[code]:
                if self._codes.get(gone, (0,))[0] == code:
                    del self._codes[gone]
            self._codes[symbol], self._lent[symbol] = (code, False), code
            self._rows[code] = [symbol, symbol, *[0] * (len(self._rows[code]) - 2)]
            changed.append(code)
        for first, last in self._requests(sorted(changed)):
            display.change_keyboard_mapping(first, [tuple(self._rows[code]) for code in range(first, last + 1)])
        display.sync()
        time.sleep(SETTLE)

    def _lendable(self) -> list[int]:
        """Empty keycodes and those of media keys; the largest stretch that one request can change comes last."""
        ranked = []
        for rewritable, stretch in groupby(self._rows, self._rewritable):
            codes = [code for code in stretch if rewritable and self._free(code)]
            ranked += [(len(codes), not any(self._rows[code]), code) for code in codes]
        return [code for _, _, code in sorted(ranked)]

    def _free(self, code: int) -> bool:
        if code < _FIRST or code in _BROWSER:
            return False
        return all(symbol == 0 or symbol in _MEDIA for symbol in self._rows[code])

    def _rewritable(self, code: int) -> bool:
        """Whether writing the row again as it is changes nothing: one level, and no modifier.

        Of keys with levels the core protocol tells less than the server knows.
        """
        plain, shifted = self._rows[code][:2]
        return shifted in (0, plain) and plain not in MODIFIERS and not 0xFE00 <= plain < 0xFF00

    def _requests(self, codes: list[int]) -> Iterator[tuple[int, int]]:
        """First and last keycode of each, with what lies between the changed ones written again."""
        start = last = codes[0]
        for code in codes[1:]:
            if not all(self._rewritable(between) for between in range(last + 1, code)):
                yield start, last
                start = code
            last = code
        yield start, last
