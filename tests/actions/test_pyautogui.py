"""Scripts that amount to one action, and scripts that do not."""

import pytest

from flywheel.actions.base import Parsed
from flywheel.actions.pyautogui import PyAutoGUI
from flywheel.actions.pyautogui_script import read_script, write_script
from flywheel.errors import ActionError
from flywheel.types import Click, Done, Drag, Key, Move, Scroll, Size, Type, Wait

SCREEN = Size(1920, 1080)
SPACE = PyAutoGUI()


@pytest.mark.parametrize(
    ("script", "action"),
    [
        ("pyautogui.click(10, 20)", Click(10, 20)),
        ("pyautogui.click((10, 20))", Click(10, 20)),
        ("pyautogui.click(x=10.4, y=20.6)", Click(10, 21)),
        ("pyautogui.click(10, 20, 2)", Click(10, 20, "left", 2)),
        ("pyautogui.click(10, 20, clicks=3, interval=0.1)", Click(10, 20, "left", 3)),
        ("pyautogui.click(10, 20, button='right')", Click(10, 20, "right")),
        ("pyautogui.leftClick(10, 20)", Click(10, 20)),
        ("pyautogui.doubleClick(10, 20)", Click(10, 20, "left", 2)),
        ("pyautogui.tripleClick(10, 20)", Click(10, 20, "left", 3)),
        ("pyautogui.rightClick(10, 20)", Click(10, 20, "right")),
        ("pyautogui.middleClick(10, 20)", Click(10, 20, "middle")),
        ("pyautogui.moveTo(10, 20, duration=0.5, tween=pyautogui.easeInQuad)", Move(10, 20)),
        ("pyautogui.moveTo(10, 20)\npyautogui.click()", Click(10, 20)),
        ("pyautogui.moveTo(10, 20); pyautogui.click(10, 20)", Click(10, 20)),
        ("pyautogui.dragTo(30, 40, 1, button='left')", Drag(30, 40)),
        ("pyautogui.moveTo(10, 20)\npyautogui.dragTo(30, 40)", Drag(30, 40, (10, 20))),
        (
            "pyautogui.moveTo(10, 20)\npyautogui.mouseDown()\npyautogui.moveTo(30, 40)\npyautogui.mouseUp()",
            Drag(30, 40, (10, 20)),
        ),
        ("pyautogui.mouseDown(10, 20)\npyautogui.mouseUp(30, 40)", Drag(30, 40, (10, 20))),
        ("pyautogui.mouseDown()\npyautogui.moveTo(30, 40)\npyautogui.mouseUp()", Drag(30, 40)),
        ("pyautogui.mouseDown(10, 20)\npyautogui.mouseUp()", Click(10, 20)),
        ("pyautogui.scroll(-3)", Scroll(dy=-3)),
        ("pyautogui.scroll(3, x=10, y=20)", Scroll(dy=3, x=10, y=20)),
        ("pyautogui.moveTo(10, 20)\npyautogui.scroll(3)", Scroll(dy=3, x=10, y=20)),
        ("pyautogui.hscroll(2)", Scroll(dx=2)),
        ("pyautogui.write('a\\nb', interval=0.05)", Type("a\nb")),
        ("pyautogui.typewrite('ab')", Type("ab")),
        ("pyautogui.press('enter')", Key(("enter",))),
        ("pyautogui.press(['enter'])", Key(("enter",))),
        ("pyautogui.hotkey('ctrl', 'S')", Key(("ctrl", "s"))),
        ("pyautogui.hotkey(['ctrl', 's'])", Key(("ctrl", "s"))),
        ("pyautogui.keyDown('ctrl')\npyautogui.press('c')\npyautogui.keyUp('ctrl')", Key(("ctrl", "c"))),
        (
            "pyautogui.keyDown('ctrl'); pyautogui.keyDown('c'); pyautogui.keyUp('c'); pyautogui.keyUp('ctrl')",
            Key(("ctrl", "c")),
        ),
        ("pyautogui.keyDown('alt')\npyautogui.keyUp('alt')", Key(("alt",))),
        ("pyautogui.keyDown('ctrl')\npyautogui.click(10, 20)\npyautogui.keyUp('ctrl')", Click(10, 20, keys=("ctrl",))),
        ("import time\nimport pyautogui\n# save\npyautogui.hotkey('ctrl', 's')\ntime.sleep(2)", Key(("ctrl", "s"))),
        ("time.sleep(1.5)", Wait(1.5)),
        ("pyautogui.sleep(1)\ntime.sleep(1)", Wait(2.0)),
        ("WAIT", Wait(1.0)),
        ("DONE", Done("success")),
        ("FAIL", Done("failure")),
    ],
)
def test_one_action(script, action):
    assert read_script(script, SCREEN) == action


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("", "no actions"),
        ("import pyautogui", "no actions"),
        ("pyautogui.click()", "A click needs its coordinates"),
        ("pyautogui.click(10)", "Coordinates must be two numbers"),
        ("pyautogui.click('button.png')", "Coordinates must be two numbers"),
        ("pyautogui.click(1920, 0)", r"\(1920, 0\) lies outside the 1920 x 1080 screen"),
        ("pyautogui.click(-1, 0)", "outside"),
        ("pyautogui.click(10, 20, clicks=9)", "click count must be from 1 to 3"),
        ("pyautogui.click(10, 20, button='up')", "no mouse button 'up'"),
        ("pyautogui.rightClick(10, 20, button='left')", "does not take 'button'"),
        ("pyautogui.click(1, 2, 1, 0, 'left', 0, 0)", "at most 6 positional"),
        ("pyautogui.click(1, x=2)", "does not take 'x'"),
        ("pyautogui.click(**{'x': 1})", "does not take 'None'"),
        ("pyautogui.click(10, 20); pyautogui.click(10, 20)", "amounts to 2 actions"),
        ("pyautogui.moveTo(1, 2); pyautogui.moveTo(3, 4)", "amounts to 2 actions"),
        ("pyautogui.moveTo(1, 2); pyautogui.click(3, 4)", "amounts to 2 actions"),
        ("pyautogui.moveTo(1, 2); pyautogui.press('a')", "amounts to 2 actions"),
        ("pyautogui.click(1, 2); pyautogui.write('a')", "amounts to 2 actions"),
        ("pyautogui.moveTo()", "moveTo needs its coordinates"),
        ("pyautogui.dragTo(button='left')", "dragTo needs coordinates"),
        ("pyautogui.dragTo(3, 4, button='right')", "left button"),
        ("pyautogui.mouseDown(1, 2)", "still held down"),
        ("pyautogui.mouseUp(1, 2)", "without mouseDown"),
        ("pyautogui.mouseDown(1, 2, 'right')", "Only the left button"),
        ("pyautogui.mouseDown(); pyautogui.mouseUp()", "say nothing of where"),
        ("pyautogui.mouseDown(1, 2); pyautogui.press('a'); pyautogui.mouseUp()", "while the mouse button is down"),
        ("pyautogui.scroll()", "needs its amount"),
        ("pyautogui.scroll(1.5)", "whole number"),
        ("pyautogui.scroll(5000)", "from -100 to 100"),
        ("pyautogui.write()", "needs its text"),
        ("pyautogui.write(['a', 'enter'])", "needs its text"),
        ("pyautogui.press('enter', presses=3)", "several actions"),
        ("pyautogui.press(['a', 'b'])", "one after another"),
        ("pyautogui.press()", "need key names"),
        ("pyautogui.hotkey()", "need key names"),
        ("pyautogui.press('hyper')", "There is no key 'hyper'"),
        ("pyautogui.keyDown('ctrl')", "still held down"),
        ("pyautogui.keyUp('ctrl')", "without its keyDown"),
        ("pyautogui.keyDown('ctrl+s')", "There is no key 'ctrl\\+s'"),
        ("pyautogui.keyDown('ctrl'); pyautogui.scroll(1); pyautogui.keyUp('ctrl')", "keys held down is not supported"),
        ("time.sleep('a')", "number of seconds"),
        ("time.sleep(100)", "from 0 to 60.0"),
        ("DONE\nDONE", "Line 1 is no plain call"),
        ("x = 5", "no plain call"),
        ("for i in range(3): pyautogui.click(1, 2)", "no plain call"),
        ("pyautogui.click(1 + 1, 2)", "'1 \\+ 1' is no plain number or text"),
        ("pyautogui.write(open('/etc/passwd').read())", "no plain number or text"),
        ("pyautogui.write(f'{1}')", "no plain number or text"),
        ("pyautogui.click(True, 2)", "no plain number or text"),
        ("__import__('os').system('ls')", "not allowed"),
        ("exec('1')", "The call 'exec' is not allowed"),
        ("pyautogui.alert('x')", "not allowed"),
        ("pyautogui.pyautogui.click(1, 2)", "not allowed"),
        ("pyautogui.click(1, 2", "not valid Python"),
    ],
)
def test_anything_else_is_one_sentence(script, message):
    with pytest.raises(ActionError, match=message) as raised:
        read_script(script, SCREEN)
    assert str(raised.value).endswith(".")


def test_scripts_are_the_plainest_that_say_it():
    assert write_script(Click(1, 2), SCREEN) == "pyautogui.click(1, 2)"
    assert write_script(Click(1, 2, "right", 2), SCREEN) == "pyautogui.click(1, 2, clicks=2, button='right')"
    assert write_script(Click(1, 2, keys=("ctrl", "super")), SCREEN).splitlines() == [
        "pyautogui.keyDown('ctrl')",
        "pyautogui.keyDown('win')",
        "pyautogui.click(1, 2)",
        "pyautogui.keyUp('win')",
        "pyautogui.keyUp('ctrl')",
    ]
    assert write_script(Drag(3, 4, (1, 2)), SCREEN) == "pyautogui.moveTo(1, 2)\npyautogui.dragTo(3, 4, button='left')"
    assert write_script(Key(("super", "r")), SCREEN) == "pyautogui.hotkey('win', 'r')"


def test_the_space_wraps_one_script_in_its_tags():
    text = SPACE.format(Click(1, 2), SCREEN, thinking="t", brief="b")
    assert text == "<thinking>t</thinking>\nAction: b\n<answer>pyautogui.click(1, 2)</answer>"
    assert SPACE.parse("```python\npyautogui.click(1, 2)\n```", SCREEN) == Parsed(
        Click(1, 2), fallback=True, format="python"
    )
    assert SPACE.parse("<answer>pyautogui.click(1, 2)", SCREEN) == Parsed(Click(1, 2), fallback=True, format="answer")
    assert SPACE.parse("nothing", SCREEN).error == (
        "There is no action in the answer; give one between <answer> and </answer>."
    )


def test_typed_text_never_holds_the_stop_string():
    text = SPACE.format(Type("</answer><|im_end|>\\<|"), SCREEN)
    assert text.count("</answer>") == 1
    assert "<|" not in text
    assert SPACE.parse(text, SCREEN).action == Type("</answer><|im_end|>\\<|")
