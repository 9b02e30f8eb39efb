"""Every older format, with what it is and what it is not."""

import pytest

from flywheel.actions import legacy
from flywheel.types import Click, Done, Drag, Key, Scroll, Size, Type, Wait

SCREEN = Size(1920, 1080)


@pytest.mark.parametrize(
    ("text", "name", "action"),
    [
        ("<answer>pyautogui.click(100, 200)</answer>", "answer", Click(100, 200)),
        ("I see it.\n<answer>\npyautogui.click(x=100, y=200)\n</answer>", "answer", Click(100, 200)),
        ("<answer>pyautogui.click(100, 200)", "answer", Click(100, 200)),
        ("<answer>DONE</answer>", "answer", Done("success")),
        ("<answer> FAIL </answer>", "answer", Done("failure")),
        ("<action>pyautogui.press('enter')</action>", "action", Key(("enter",))),
        ("<action>sendkey ctrl-alt-delete</action>", "action", Key(("ctrl", "alt", "delete"))),
        ("<action>type hello world</action>", "action", Type("hello world")),
        ("<action>typeline notepad</action>", "action", Type("notepad\n")),
        ("<action>WAIT</action>", "action", Wait(1.0)),
        ("<done/>", "action", Done("success")),
        ("<fail />", "action", Done("failure")),
        ("```python\nimport pyautogui\npyautogui.doubleClick(5, 6)\n```", "python", Click(5, 6, "left", 2)),
        (
            "Thought: ...\n```python\npyautogui.moveTo(1, 2)\npyautogui.dragTo(3, 4)\n```\n",
            "python",
            Drag(3, 4, (1, 2)),
        ),
        ("```\npyautogui.scroll(-5)\n```", "python", Scroll(dy=-5)),
        ("```FAIL```", "python", Done("failure")),
        ("pyautogui.tripleClick(5, 6)", "pyautogui", Click(5, 6, "left", 3)),
        ("Now the menu.\nAction: pyautogui.rightClick(5, 6)\n", "pyautogui", Click(5, 6, "right")),
        ("  pyautogui.hotkey('ctrl', 's')\n  time.sleep(1)\n", "pyautogui", Key(("ctrl", "s"))),
        ("The task is finished.\nDONE", "word", Done("success")),
        ("Action: WAIT\n", "word", Wait(1.0)),
        ("FAIL", "word", Done("failure")),
    ],
)
def test_older_formats_are_read(text, name, action):
    parsed = legacy.read(text, SCREEN)
    assert parsed is not None
    assert (parsed.action, parsed.format, parsed.fallback, parsed.error) == (action, name, True, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Click the button.",
        "I am DONE with this page.",
        "done",
        "DONE\nbut not quite",
        "Use pyautogui to click.",
        "Call `pyautogui.click(5, 6)` next.",
        "answer: pyautogui.click",
        "<answer",
        "<ANSWER>DONE</ANSWER> .",
    ],
)
def test_prose_is_no_action(text):
    assert legacy.read(text, SCREEN) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<answer></answer>", "no actions"),
        ("<answer>click the button</answer>", "not valid Python"),
        ("<answer>pyautogui.click(5, 6)</answer><answer>DONE</answer>", "2 actions"),
        ("<action>sendkey</action>", "sendkey needs one chord"),
        ("<action>sendkey KEY</action>", "There is no key 'KEY'"),
        ("<action>type </action>", "type needs its text"),
        ("<done/><fail/>", "2 actions"),
        ("```python\nimport os\nos.system('ls')\n```", "'os.system' is not allowed"),
        ("```json\n{}\n```", "no plain call"),
        ("pyautogui.click(5, 6)\npyautogui.click(7, 8)", "amounts to 2 actions"),
        ("pyautogui.click(1920, 0)", "outside the 1920 x 1080 screen"),
        ("pyautogui.screenshot()", "not allowed"),
    ],
)
def test_an_older_format_with_a_bad_action_is_one_sentence(text, message):
    parsed = legacy.read(text, SCREEN)
    assert parsed is not None
    assert parsed.action is None
    assert parsed.fallback
    assert message in (parsed.error or "")


class TestContentsComeWithoutTheirTags:
    """A pattern that returned the tags with the match once made every action score the same for weeks."""

    @pytest.mark.parametrize("reader", legacy.READERS.values(), ids=list(legacy.READERS))
    def test_no_reader_returns_markup(self, reader):
        text = "<answer>A</answer><action>B</action><done/>```python\nC```\npyautogui.click(1, 2)\nDONE"
        (*_, content) = reader(text)
        assert not any(tag in content for tag in ("answer", "action", "<", ">", "`", "python\n"))

    def test_what_each_returns(self):
        assert legacy.answer_contents("x <answer>a</answer> y <answer>b</answer>") == ["a", "b"]
        assert legacy.action_contents("<action>sendkey ret</action><done/>") == ["sendkey ret", "done"]
        assert legacy.fence_contents("```python\na\n``` b ```c```") == ["\na\n", "c"]
        assert legacy.bare_calls("pyautogui.press('a')\nx\ntime.sleep(1)") == ["pyautogui.press('a')\ntime.sleep(1)"]
        assert legacy.last_word("x\nFAIL\n") == ["FAIL"]

    @pytest.mark.parametrize("reader", legacy.READERS.values(), ids=list(legacy.READERS))
    def test_nothing_to_find_is_nothing(self, reader):
        assert reader("no action here, answer: action") == []
