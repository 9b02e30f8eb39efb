"""The keyboard's half of the desktop: names of keys, and what keys and typed text do.

Text goes into the focused field and nowhere else. Tab moves the focus, enter and space press what has it (an icon
opens), ctrl+a selects a field's text, escape closes menus and dialogs. Any other combination is a shortcut that the
application sees together with the focused widget.
"""

from flywheel.envs.simulated.machine import Machine

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
_FOCUSABLE = ("field", "check", "button")


def type_text(machine: Machine, text: str) -> None:
    """Type letter by letter; line breaks are enter, tabs are tab."""
    for letter in text:
        if letter in "\n\t":
            _single(machine, "enter" if letter == "\n" else "tab", shifted=False)
        else:
            _letter(machine, letter)


def press_keys(machine: Machine, keys: tuple[str, ...]) -> str | None:
    """Press keys together; a sentence when a name is unknown, and then nothing has happened."""
    for key in keys:
        if len(key) != 1 and _plain(key) not in _NAMED:
            return f"There is no key named '{key}'."
    if not keys:
        return "No key was named."
    names = [_plain(key) for key in keys]
    held = [name for name in _MODIFIERS if name in names]
    others = [name for name in names if name not in _MODIFIERS]
    if held in ([], ["shift"]):
        for name in others:
            _single(machine, name, shifted=bool(held))
    elif others:
        _shortcut(machine, "+".join([*held, *(name.lower() for name in others)]))
    return None


def _plain(key: str) -> str:
    name = key.lower() if len(key) > 1 else key
    return _ALIASES.get(name, name)


def _single(machine: Machine, name: str, shifted: bool) -> None:
    state = machine.state
    if name == "escape":
        _escape(machine)
        return
    if state.dialog is not None:
        return
    if name == "tab":
        _move_focus(machine, -1 if shifted else 1)
    elif state.focus is not None:
        if machine.parts[state.focus].kind == "field":
            _edit(machine, state.focus, name, shifted)
        elif name in ("enter", "space"):
            machine.press(state.focus)


def _escape(machine: Machine) -> None:
    state = machine.state
    if state.dialog is not None:
        machine.log("dismiss", machine.parts[state.dialog].caption)
    state.dialog = state.open = None


def _move_focus(machine: Machine, by: int) -> None:
    """Row by row, round and round."""
    state = machine.state
    order = [widget for widget in machine.widgets if widget.kind in _FOCUSABLE]
    order.sort(key=lambda widget: (widget.top, widget.left))
    numbers = [widget.index for widget in order]
    if not numbers:
        return
    position = numbers.index(state.focus) + by if state.focus in numbers else min(by, 0)
    state.focus, state.selected = numbers[position % len(numbers)], False


def _edit(machine: Machine, index: int, name: str, shifted: bool) -> None:
    state = machine.state
    if name == "enter":
        machine.log("enter", machine.parts[index].caption, state.text[index])
    elif name in ("backspace", "delete"):
        if state.selected:
            state.text[index] = ""
        elif name == "backspace":
            state.text[index] = state.text[index][:-1]
        state.selected = False
    elif name == "space":
        _letter(machine, " ")
    elif len(name) == 1:
        _letter(machine, name.upper() if shifted else name)


def _letter(machine: Machine, letter: str) -> None:
    state = machine.state
    if state.focus is None or state.dialog is not None or machine.parts[state.focus].kind != "field":
        return
    state.text[state.focus] = letter if state.selected else state.text[state.focus] + letter
    state.selected = False


def _shortcut(machine: Machine, combination: str) -> None:
    state = machine.state
    if state.dialog is not None:
        return
    part = None if state.focus is None else machine.parts[state.focus]
    if combination == "ctrl+a" and part is not None and part.kind == "field":
        state.selected = True
    else:
        machine.log("shortcut", combination, part.caption if part else None)
