"""One name for each key, whoever spells it."""

import pytest

from flywheel.actions.keys import PYAUTOGUI_NAMES, QEMU_NAMES, chord, key_name
from flywheel.errors import ActionError


@pytest.mark.parametrize(
    ("name", "spellings"),
    {
        "ctrl": ["ctrl", "Control", "CTRL", "Control_L", "ctrl_r", "ctrlleft"],
        "super": ["win", "Meta_L", "meta_l", "cmd", "Super_L", "windows"],
        "enter": ["Return", "ret", "ENTER", "KP_Enter", "\n"],
        "esc": ["Escape", "esc"],
        "pagedown": ["Page_Down", "page down", "pgdn", "Next"],
        "up": ["ArrowUp", "Up"],
        "space": [" ", "spc", "space"],
        "tab": ["\t", "Tab"],
        "delete": ["del", "Delete"],
        "printscreen": ["prtsc", "Print", "sysrq"],
        "f5": ["F5"],
        "-": ["-", "minus"],
        "[": ["bracket_left", "bracketleft"],
        "7": ["7", "num7", "kp_7"],
        "a": ["a"],
        "A": ["A"],
        "é": ["é"],
    }.items(),
)
def test_spellings(name, spellings):
    assert {key_name(spelling) for spelling in spellings} == {name}


@pytest.mark.parametrize("name", ["", "  ", "hyper", "ctrl+s", "ab", "f25", "\x00", "\x1b"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ActionError, match="There is no key"):
        key_name(name)


def test_chords():
    assert chord(["ctrl+shift", "T"]) == ("ctrl", "shift", "t")
    assert chord(["Ctrl + S"]) == ("ctrl", "s")
    assert chord(["ctrl++"]) == ("ctrl", "+")
    assert chord(["+"]) == ("+",)
    assert chord(["A"]) == ("A",), "alone, a letter is the character that it types"
    with pytest.raises(ActionError, match="empty"):
        chord([])


@pytest.mark.parametrize("names", [QEMU_NAMES, PYAUTOGUI_NAMES])
def test_the_names_of_other_tools_read_back(names):
    assert {key_name(other): other for other in names.values()} == names
