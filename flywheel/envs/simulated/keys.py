"""Names of keys as agents write them, brought to one spelling."""

_ALIASES = {
    "control": "ctrl", "return": "enter", "esc": "escape", "del": "delete", "cmd": "super", "win": "super",
    "meta": "super", "option": "alt", "pgup": "pageup", "pgdn": "pagedown", "page_up": "pageup",
    "page_down": "pagedown", "bksp": "backspace", " ": "space",
}  # fmt: skip
_MODIFIERS = ("ctrl", "alt", "shift", "super")
_NAMED = {
    *_MODIFIERS, "enter", "escape", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup",
    "pagedown", "up", "down", "left", "right", "capslock", "printscreen", *(f"f{i}" for i in range(1, 13)),
}  # fmt: skip


def normalise(keys: tuple[str, ...]) -> tuple[str, ...] | str:
    """Modifiers first in a fixed order, then the others; a sentence when a name is unknown or nothing is pressed."""
    names = []
    for key in keys:
        name = key.lower() if len(key) > 1 else key
        name = _ALIASES.get(name, name)
        if len(name) != 1 and name not in _NAMED:
            return f"There is no key named '{key}'."
        names.append(name)
    if not names:
        return "No key was named."
    held = [name for name in _MODIFIERS if name in names]
    others = [name.lower() if held else name for name in names if name not in _MODIFIERS]
    return tuple(held + others)
