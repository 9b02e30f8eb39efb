"""Reading pyautogui scripts and actions: no desktop needed."""

import pytest

from flywheel.envs.server.guest.actions import read_action
from flywheel.envs.server.guest.errors import ActionRefusedError, RefusedError
from flywheel.envs.server.guest.keys import character, characters, keysym
from flywheel.envs.server.guest.script import MAX_CHARACTERS, read_script
from flywheel.envs.server.guest.strokes import Button, KeyStroke, MoveTo, Pause, Stroke, Write
from flywheel.envs.wire import action_to_json
from flywheel.types import Action, Click, Done, Drag, Key, Move, Scroll, Type, Wait

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
SCREEN = (1280, 800)
CTRL, SHIFT = 0xFFE3, 0xFFE1


def press(symbol: int) -> list[Stroke]:
    return [KeyStroke(symbol, True), KeyStroke(symbol, False)]


LEFT: list[Stroke] = [Button(1, True), Button(1, False)]


@pytest.mark.parametrize(
    ("calls", "strokes"),
    [
        ("pyautogui.click(3, 4)", [MoveTo(3, 4), *LEFT]),
        ("pyautogui.click(x=3.7, y=4)", [MoveTo(3, 4), *LEFT]),
        ("pyautogui.click((3, 4))", [MoveTo(3, 4), *LEFT]),
        ("pyautogui.click()", LEFT),
        ("pyautogui.click(3, 4, 2, 0.5)", [MoveTo(3, 4), *LEFT, Pause(0.5), *LEFT]),
        ("pyautogui.rightClick(3, 4)", [MoveTo(3, 4), Button(3, True), Button(3, False)]),
        ("pyautogui.click(button='right', x=3, y=4)", [MoveTo(3, 4), Button(3, True), Button(3, False)]),
        ("pyautogui.doubleClick(3, 4)", [MoveTo(3, 4), *LEFT, *LEFT]),
        ("pyautogui.moveTo(3, 4, 0.73, pyautogui.easeInBounce)", [MoveTo(3, 4)]),
        ("pyautogui.moveRel(-3, 4)", [MoveTo(-3, 4, relative=True)]),
        ("pyautogui.mouseDown(); pyautogui.mouseUp(button='left')", LEFT),
        ("pyautogui.scroll(-2)", [Button(5, True), Button(5, False)] * 2),
        ("pyautogui.hscroll(1, 3, 4)", [MoveTo(3, 4), Button(7, True), Button(7, False)]),
        ("pyautogui.typewrite('ß\\\\')", [Write("ß\\")]),
        ("pyautogui.write('ab', interval=0.1)", [Write("a"), Pause(0.1), Write("b"), Pause(0.1)]),
        ("pyautogui.write(['a', 'enter'])", [*press(0x61), *press(0xFF0D)]),
        ("pyautogui.press('enter', presses=2)", press(0xFF0D) * 2),
        ("pyautogui.press(['up', 'down'])", [*press(0xFF52), *press(0xFF54)]),
        ("pyautogui.press('nosuchkey')", []),
        ("pyautogui.hotkey('ctrl', 's')", [KeyStroke(CTRL, True), *press(0x73), KeyStroke(CTRL, False)]),
        ("pyautogui.hotkey(['ctrl', 's'])", [KeyStroke(CTRL, True), *press(0x73), KeyStroke(CTRL, False)]),
        ("pyautogui.keyDown('shift'); pyautogui.keyUp('shift')", press(SHIFT)),
        ("time.sleep(0.5); pyautogui.sleep(1)", [Pause(0.5), Pause(1.0)]),
        ("'a comment'; pass", []),
    ],
)
def test_a_script_is_read(calls: str, strokes: list[Stroke]) -> None:
    assert read_script(PREFIX + calls) == strokes


def test_a_drag_presses_glides_and_releases() -> None:
    strokes = read_script(PREFIX + "pyautogui.dragTo(3, 4, duration=1.0, button='left', mouseDownUp=True)")
    assert strokes is not None
    assert [each for each in strokes if not isinstance(each, Pause)] == [
        Button(1, True),
        MoveTo(3, 4, glide=12),
        Button(1, False),
    ]


def test_modules_may_have_other_names() -> None:
    assert read_script("import pyautogui as pg, time as t\npg.click(1, 2)\nt.sleep(1)") == [
        MoveTo(1, 2),
        *LEFT,
        Pause(1.0),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "pyautogui.click(1, 2)",
        "import os; import pyautogui",
        "from pyautogui import click; click(1, 2)",
        "import pyautogui; pyautogui.click(f())",
        "import pyautogui; pyautogui.click(1 + 2, 3)",
        "import pyautogui; pyautogui.click('button.png')",
        "import pyautogui; pyautogui.screenshot()",
        "import pyautogui; pyautogui.click.__globals__()",
        "import pyautogui; pyautogui.__dict__['os'].system('id')",
        "import pyautogui; x = pyautogui.click(1, 2)",
        "import pyautogui; pyautogui.click(1, 2, **{'button': 'left'})",
        "import pyautogui; pyautogui.click(*[1, 2])",
        "import pyautogui; pyautogui.click(1, 2, button='fourth')",
        "import pyautogui; pyautogui.click(1e400, 2)",
        "import pyautogui; pyautogui.press('a', presses=10**9)",
        "import pyautogui; pyautogui.press('a', presses=1000000000)",
        "import pyautogui; pyautogui.scroll(1000000000)",
        "import pyautogui; time.sleep(1)",
        "import pyautogui, time; time.sleep(1000)",
        "import pyautogui, time; time.sleep(float('inf'))",
        "import pyautogui\nwhile True: pass",
        "import pyautogui; pyautogui.PAUSE = exit()",
        "import pyautogui; 1 +",
        "import pyautogui\0",
        "print(1)",
        "",
        "import pyautogui\n" + "-" * 20_000 + "1",
        "import pyautogui\n" + "(" * 5_000 + ")" * 5_000,
        "import pyautogui; pyautogui.write('" + "a" * MAX_CHARACTERS + "')",
    ],
)
def test_anything_else_is_for_a_child(code: str) -> None:
    assert read_script(code) is None


@pytest.mark.parametrize(
    ("action", "strokes"),
    [
        (Click(3, 4, "right", 2), [MoveTo(3, 4), *[Button(3, True), Button(3, False)] * 2]),
        (Click(3, 4, keys=("ctrl",)), [MoveTo(3, 4), KeyStroke(CTRL, True), *LEFT, KeyStroke(CTRL, False)]),
        (Move(3, 4), [MoveTo(3, 4)]),
        (Scroll(dy=-1), [Button(5, True), Button(5, False)]),
        (Scroll(dx=1, x=3, y=4), [MoveTo(3, 4), Button(7, True), Button(7, False)]),
        (Type("é\n"), [Write("é\n")]),
        (Key(("ctrl", "s")), [KeyStroke(CTRL, True), *press(0x73), KeyStroke(CTRL, False)]),
        (Wait(0.5), [Pause(0.5)]),
    ],
)
def test_the_wire_form_of_an_action_is_read(action: Action, strokes: list[Stroke]) -> None:
    assert read_action(action_to_json(action), SCREEN) == strokes


def test_a_drag_may_begin_where_the_pointer_is() -> None:
    with_start = read_action(action_to_json(Drag(30, 40, start=(3, 4))), SCREEN)
    assert with_start[0] == MoveTo(3, 4)
    assert read_action(action_to_json(Drag(30, 40)), SCREEN) == with_start[1:]


@pytest.mark.parametrize("action", [Click(1280, 5), Move(5, 800), Drag(5, 5, (-1, 0)), Key(("hyperspace",))])
def test_an_action_that_this_screen_cannot_take_is_refused(action: Action) -> None:
    with pytest.raises(ActionRefusedError):
        read_action(action_to_json(action), SCREEN)


@pytest.mark.parametrize(
    "action",
    [
        None,
        [],
        {},
        {"type": ["click"]},
        {"type": "click"},
        {"type": "click", "x": "1", "y": 2},
        {"type": "click", "x": True, "y": 2},
        {"type": "click", "x": 1, "y": 2, "count": 99},
        {"type": "click", "x": 1, "y": 2, "button": "fourth"},
        {"type": "drag", "x": 1, "y": 2, "start": [1]},
        {"type": "key", "keys": []},
        {"type": "key", "keys": "ctrl"},
        {"type": "type", "text": 5},
        {"type": "wait", "seconds": 1e9},
        action_to_json(Done()),
    ],
)
def test_a_malformed_action_is_refused(action: object) -> None:
    with pytest.raises(RefusedError):
        read_action(action, SCREEN)


def test_every_key_of_the_action_spaces_has_a_keysym() -> None:
    from flywheel.actions.keys import _CHARACTERS, _NAMED

    assert [name for name in [*_NAMED, *_CHARACTERS] if keysym(name) is None] == []


def test_characters_are_keysyms() -> None:
    assert [character(each) for each in "aß€\n"] == [0x61, 0xDF, 0x010020AC, 0xFF0D]
    assert characters("a\r\nb\x00\x07") == [0x61, 0xFF0D, 0x62]
