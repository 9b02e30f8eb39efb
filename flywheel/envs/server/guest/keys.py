"""Names of keys and characters as X keysyms; pure tables, no X connection.

Names are those of pyautogui and of flywheel's action space. Source of the numbers: X11/keysymdef.h, XF86keysym.h.
"""

_NAMED: dict[int, str] = {
    0x0020: "space",
    0xFF08: "backspace",
    0xFF09: "tab",
    0xFF0B: "clear",
    0xFF0D: "enter return",
    0xFF13: "pause",
    0xFF14: "scrolllock",
    0xFF1B: "esc escape",
    0xFF50: "home",
    0xFF51: "left",
    0xFF52: "up",
    0xFF53: "right",
    0xFF54: "down",
    0xFF55: "pageup pgup",
    0xFF56: "pagedown pgdn",
    0xFF57: "end",
    0xFF60: "select",
    0xFF61: "printscreen print prntscrn prtsc prtscr",
    0xFF62: "execute",
    0xFF63: "insert",
    0xFF67: "menu apps",
    0xFF6A: "help",
    0xFF7F: "numlock",
    0xFFAA: "multiply",
    0xFFAB: "add",
    0xFFAC: "separator",
    0xFFAD: "subtract",
    0xFFAE: "decimal",
    0xFFAF: "divide",
    0xFFE1: "shift shiftleft",
    0xFFE2: "shiftright",
    0xFFE3: "ctrl ctrlleft control",
    0xFFE4: "ctrlright",
    0xFFE5: "capslock",
    0xFFE9: "alt altleft option optionleft",
    0xFFEA: "altright optionright",
    0xFFEB: "super win winleft command",
    0xFFEC: "winright",
    0xFFFF: "delete del",
    0x1008FF11: "volumedown",
    0x1008FF12: "volumemute",
    0x1008FF13: "volumeup",
    0x1008FF14: "playpause",
    0x1008FF15: "stop",
    0x1008FF16: "prevtrack",
    0x1008FF17: "nexttrack",
    0x1008FF18: "browserhome",
    0x1008FF19: "launchmail",
    0x1008FF1B: "browsersearch",
    0x1008FF26: "browserback",
    0x1008FF27: "browserforward",
    0x1008FF28: "browserstop",
    0x1008FF29: "browserrefresh",
    0x1008FF30: "browserfavorites",
}
_KEYSYMS = {name: keysym for keysym, names in _NAMED.items() for name in names.split()}
_KEYSYMS |= {f"f{number}": 0xFFBE + number - 1 for number in range(1, 25)}
_KEYSYMS |= {f"num{digit}": 0xFFB0 + digit for digit in range(10)}

# Characters that are keys of their own; the rest of the control characters types nothing.
_CONTROLS = {"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B, "\x7f": 0xFFFF}

SHIFT, CAPS_LOCK = _KEYSYMS["shift"], _KEYSYMS["capslock"]
MODIFIERS = frozenset({*range(0xFFE1, 0xFFEF), 0xFE03})
"""Shift, Control, locks, Meta, Alt, Super, Hyper and AltGr."""


def keysym(name: str) -> int | None:
    """The keysym of a named key or of a single character; None for a name that nobody uses."""
    if len(name) == 1:
        return character(name)
    return _KEYSYMS.get(name.lower().replace("_", ""))


def character(text: str) -> int | None:
    """The keysym that types one character; None for a control character without a key.

    Latin-1 characters are their own keysyms, all others are 0x01000000 + code point.
    """
    code = ord(text)
    if text in _CONTROLS:
        return _CONTROLS[text]
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        return None
    return code if code < 0x100 else 0x01000000 + code


def characters(text: str) -> list[int]:
    """The keysyms that type `text`; a line break of two characters is one."""
    found = (character(each) for each in text.replace("\r\n", "\n"))
    return [each for each in found if each is not None]
