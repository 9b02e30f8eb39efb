"""Defects of earlier systems that concern actions; each would have been silent."""

import pytest

from flywheel.actions.computer_use import ComputerUse
from flywheel.actions.pyautogui import PyAutoGUI
from flywheel.actions.registry import action_space
from flywheel.rewards import TurnEvidence, shape
from flywheel.types import Click, Done, Drag, Move, Scroll, Size, Type

SMALL, LARGE = Size(160, 128), Size(1920, 1080)
POINTERS = [ComputerUse(), PyAutoGUI()]


@pytest.mark.parametrize("name", ["computer_use", "pyautogui", "sendkey"])
def test_an_action_that_ends_in_the_stop_string_is_no_fallback(name):
    """The tag was trimmed with the stop string, every action parsed by the fallback, and every success was taxed."""
    space = action_space(name)
    text = space.format(Type("hello"), LARGE)
    assert text.endswith(space.stop)
    assert not space.parse(text, LARGE).fallback
    trimmed = space.parse(text.removesuffix(space.stop), LARGE)
    assert (trimmed.action, trimmed.fallback) == (Type("hello"), True)


def test_the_same_text_means_the_same_place_on_every_screen():
    """Coordinates were passed on unscaled although the grid is relative."""
    text = ComputerUse().format(Click(80, 64), SMALL)
    assert ComputerUse().parse(text, SMALL).action == Click(80, 64)
    assert ComputerUse().parse(text, LARGE).action == Click(960, 540)


@pytest.mark.parametrize("name", ["computer_use", "pyautogui", "sendkey"])
@pytest.mark.parametrize("status", ["success", "failure"])
def test_done_and_fail_are_actions(name, status):
    """They never reached the environment, so infeasible tasks could not score."""
    space = action_space(name)
    assert space.parse(space.format(Done(status), LARGE), LARGE).action == Done(status)


@pytest.mark.parametrize("space", POINTERS, ids=lambda space: space.name)
@pytest.mark.parametrize("action", [Click(8, 8, "left", 3), Drag(9, 9, (8, 8)), Drag(9, 9), Move(8, 8)], ids=repr)
def test_pointer_actions_keep_their_meaning(space, action):
    """triple_click, drags and mouse_move became something else or nothing."""
    assert space.parse(space.format(action, SMALL), SMALL).action == action


def test_two_texts_typed_in_a_row_are_no_repeat():
    """They counted as one because neither has a coordinate."""
    different = [TurnEvidence("type", Type(text)) for text in ("a", "b")]
    equal = [TurnEvidence("type", Type("a"))] * 2
    assert shape(different, 0.0, max_turns=8)[1]["repeat_penalty"] == 0.0
    assert shape(equal, 0.0, max_turns=8)[1]["repeat_penalty"] == pytest.approx(0.2)


def test_one_notch_is_one_notch_in_every_spelling():
    """Scroll units differed between training and evaluation."""
    official = '{"action": "scroll", "pixels": -300}'
    older = '{"action": "scroll", "direction": "down", "amount": 3}'
    calls = [f'<tool_call>{{"name": "computer_use", "arguments": {call}}}</tool_call>' for call in (official, older)]
    texts = [*calls, "pyautogui.scroll(-3)"]
    assert {ComputerUse().parse(text, LARGE).action for text in texts} == {Scroll(dy=-3)}
    assert PyAutoGUI().parse("<answer>pyautogui.scroll(-3)</answer>", LARGE).action == Scroll(dy=-3)


@pytest.mark.parametrize("name", ["computer_use", "pyautogui", "sendkey"])
def test_there_is_one_prompt_and_it_is_constant(name):
    """Prompts differed between training and evaluation."""
    space = action_space(name)
    assert space.system_prompt() == action_space(space.id).system_prompt()
    assert space.tools() == action_space(space.id).tools()
