"""Characters and key names -> QEMU key codes, for a guest that has the US keyboard layout.

A guest with another layout reads other characters from the same keys: set it to US, there is no way to ask it.
"""

from collections.abc import Iterator

from flywheel.actions.base import quote
from flywheel.actions.keys import QEMU_NAMES
from flywheel.errors import ActionError

_PLAIN = {" ": QEMU_NAMES["space"], "\n": QEMU_NAMES["enter"], "\t": "tab"}
_PLAIN |= {character: QEMU_NAMES[character] for character in "-=[]\\;'`,./"}
_PLAIN |= {character: character for character in "abcdefghijklmnopqrstuvwxyz0123456789"}
_SHIFTED = dict(zip(')!@#$%^&*(_+{}|:"~<>?', "0123456789-=[]\\;'`,./", strict=True))
_SHIFTED |= {character.upper(): character for character in "abcdefghijklmnopqrstuvwxyz"}
_MODIFIERS = {"ctrl", "alt", "shift", "meta_l"}
_NAMED = """
    ctrl alt shift esc tab backspace delete insert home end up down left right pause menu meta_l ret spc pgup pgdn
    caps_lock num_lock scroll_lock print f1 f2 f3 f4 f5 f6 f7 f8 f9 f10 f11 f12
"""


def chord_codes(keys: tuple[str, ...]) -> list[str]:
    """Codes in the order in which they go down; raises `ActionError` for a key that this keyboard does not have.

    `keys` are canonical names (`flywheel.actions.keys`); a character that needs shift brings it along.
    """
    codes: list[str] = []
    for key in keys:
        for code in _key(key):
            if code not in codes:
                codes.append(code)
    return sorted(codes, key=lambda code: code not in _MODIFIERS)  # stable: modifiers first


def text_codes(text: str) -> list[list[str]]:
    """One chord for each character; raises `ActionError` when one of them is not on the keyboard."""
    return [list(_character(character)) for character in text.replace("\r\n", "\n")]


def _key(key: str) -> Iterator[str]:
    if len(key) == 1:
        yield from _character(key)
        return
    code = QEMU_NAMES.get(key, key)
    if code not in _NAMED.split():
        raise ActionError(f"The virtual keyboard has no key {quote(key)}; use letters, digits, f1 to f12, ctrl, ret.")
    yield code


def _character(character: str) -> Iterator[str]:
    plain = _SHIFTED.get(character, character)
    if plain not in _PLAIN:
        raise ActionError(
            f"The character {quote(character)} is not on a US keyboard, so nothing was typed; use printable ASCII."
        )
    if plain != character:
        yield "shift"
    yield _PLAIN[plain]
