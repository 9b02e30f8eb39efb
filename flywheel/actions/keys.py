"""One vocabulary of key names, and the spellings of other tools that it understands.

A canonical chord is a tuple such as ("ctrl", "s"). Named keys are lower case; any other key is named by the single
character it prints. Spellings of pyautogui, xdotool (X keysyms), QEMU's `sendkey` and web browsers are read as aliases.
"""

import re
from collections.abc import Iterable

from flywheel.actions.base import quote
from flywheel.errors import ActionError

# canonical name -> other spellings, written without underscores, spaces and capitals
_NAMED = {
    "ctrl": "control ctrlleft ctrlright ctrll ctrlr controll controlr controlleft controlright",
    "alt": "altleft altright altl altr option optionleft optionright",
    "shift": "shiftleft shiftright shiftl shiftr",
    "super": "superl superr win winleft winright windows meta metal metar command cmd",
    "enter": "return ret kpenter numpadenter",
    "esc": "escape",
    "tab": "",
    "space": "spc spacebar",
    "backspace": "",
    "delete": "del",
    "insert": "ins",
    "home": "",
    "end": "",
    "pageup": "pgup prior",
    "pagedown": "pgdn pgdown next",
    "up": "arrowup uparrow",
    "down": "arrowdown downarrow",
    "left": "arrowleft leftarrow",
    "right": "arrowright rightarrow",
    "capslock": "",
    "numlock": "",
    "scrolllock": "",
    "printscreen": "prtsc prtscr prntscrn print sysrq snapshot",
    "pause": "break",
    "menu": "apps contextmenu",
}
_NAMED |= {f"f{number}": "" for number in range(1, 25)}

# QEMU's name comes first: it is the one that is written
_CHARACTERS = {
    "-": "minus hyphen subtract kpsubtract",
    "=": "equal equals",
    "[": "bracketleft leftbracket",
    "]": "bracketright rightbracket",
    "\\": "backslash",
    ";": "semicolon",
    "'": "apostrophe quote",
    "`": "graveaccent grave backtick",
    ",": "comma",
    ".": "dot period decimal kpdecimal",
    "/": "slash divide kpdivide",
    "*": "asterisk multiply kpmultiply",
    "+": "plus add kpadd",
    "<": "less",
}
_CHARACTERS |= {str(digit): f"num{digit} kp{digit} numpad{digit}" for digit in range(10)}

_ALIASES = {spelling: name for name, others in (_NAMED | _CHARACTERS).items() for spelling in [name, *others.split()]}
_WHITESPACE = {" ": "space", "\n": "enter", "\r": "enter", "\t": "tab"}

# What QEMU's monitor calls a key, where that differs from the canonical name; letters and digits do not.
QEMU_NAMES = {
    "super": "meta_l",
    "enter": "ret",
    "space": "spc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "capslock": "caps_lock",
    "numlock": "num_lock",
    "scrolllock": "scroll_lock",
    "printscreen": "print",
    "-": "minus",
    "=": "equal",
    "[": "bracket_left",
    "]": "bracket_right",
    "\\": "backslash",
    ";": "semicolon",
    "'": "apostrophe",
    "`": "grave_accent",
    ",": "comma",
    ".": "dot",
    "/": "slash",
    "*": "asterisk",
    "<": "less",
}

# What pyautogui calls a key, where that differs.
PYAUTOGUI_NAMES = {"super": "win", "menu": "apps"}


def key_name(spelling: str) -> str:
    """The canonical name of one key; raises `ActionError` on a name that nobody uses."""
    if spelling in _WHITESPACE:
        return _WHITESPACE[spelling]
    name = spelling.strip()
    if len(name) == 1 and name.isprintable():
        return name
    canonical = _ALIASES.get(name.lower().replace("_", "").replace(" ", ""))
    if canonical is None:
        raise ActionError(f"There is no key {quote(spelling)}; use names such as ctrl, shift, super, enter, f5 or a.")
    return canonical


def chord(spellings: Iterable[str]) -> tuple[str, ...]:
    """Canonical names of keys pressed together; "ctrl+s" counts as two. Raises `ActionError`, also when there is none.

    Together with others a letter names its key, so ("ctrl", "S") is ("ctrl", "s"); alone it is the character typed.
    """
    names = [key_name(part) for spelling in spellings for part in re.split(r"(?<=.)\+(?=.)", spelling)]
    if not names:
        raise ActionError("The list of keys is empty; name at least one key.")
    if len(names) == 1:
        return (names[0],)
    return tuple(name.lower() if len(name) == 1 and name.isascii() else name for name in names)
