"""The grid, the scroll unit, and every spelling of every action of the tool."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.actions.tool_arguments import (
    GRID,
    PIXELS_PER_NOTCH,
    read_arguments,
    to_grid,
    to_notches,
    to_pixel,
    write_arguments,
)
from flywheel.errors import ActionError
from flywheel.types import Answer, Click, Done, Drag, Key, Move, Scroll, Size, Type, Wait

SCREEN = Size(1920, 1080)
MIDDLE = (960, 540)


def read(**values):
    return read_arguments(values, SCREEN)


def test_every_pixel_of_every_extent_up_to_the_grid_comes_back():
    for extent in range(1, GRID + 1):
        assert all(to_pixel(to_grid(pixel, extent), extent) == pixel for pixel in range(extent)), extent


@given(st.integers(1, 20_000).flatmap(lambda extent: st.tuples(st.just(extent), st.integers(0, extent - 1))))
def test_any_pixel_comes_back_within_one_grid_step(extent_and_pixel):
    extent, pixel = extent_and_pixel
    back = to_pixel(to_grid(pixel, extent), extent)
    assert 0 <= back < extent
    assert abs(back - pixel) <= max(0, extent / GRID)


@given(st.integers(1, 20_000), st.floats(0, GRID))
def test_the_whole_grid_lies_on_the_screen_and_keeps_its_order(extent, grid):
    assert 0 <= to_pixel(grid, extent) < extent
    assert to_pixel(0, extent) == 0
    assert to_pixel(GRID, extent) == extent - 1
    assert to_pixel(grid, extent) <= to_pixel(min(GRID, grid + 1), extent)


@given(st.integers(-100, 100))
def test_notches_come_back(notches):
    assert to_notches(notches * PIXELS_PER_NOTCH) == notches


def test_less_than_a_notch_still_turns_one():
    assert [to_notches(pixels) for pixels in (-1, 0, 5, 149, 150)] == [-1, 0, 1, 1, 2]


OFFICIAL = [
    ({"action": "left_click", "coordinate": [500, 500]}, Click(*MIDDLE)),
    ({"action": "right_click", "coordinate": [500, 500]}, Click(*MIDDLE, "right")),
    ({"action": "middle_click", "coordinate": [500, 500]}, Click(*MIDDLE, "middle")),
    ({"action": "double_click", "coordinate": [500, 500]}, Click(*MIDDLE, "left", 2)),
    ({"action": "triple_click", "coordinate": [500, 500]}, Click(*MIDDLE, "left", 3)),
    ({"action": "left_click", "coordinate": [500, 500], "keys": ["ctrl"]}, Click(*MIDDLE, keys=("ctrl",))),
    ({"action": "mouse_move", "coordinate": [500, 500]}, Move(*MIDDLE)),
    ({"action": "left_click_drag", "coordinate": [500, 500]}, Drag(*MIDDLE)),
    ({"action": "left_click_drag", "start_coordinate": [0, 0], "coordinate": [500, 500]}, Drag(*MIDDLE, (0, 0))),
    ({"action": "scroll", "coordinate": [500, 500], "pixels": 300}, Scroll(dy=3, x=960, y=540)),
    ({"action": "scroll", "pixels": -100}, Scroll(dy=-1)),
    ({"action": "hscroll", "pixels": -200}, Scroll(dx=-2)),
    ({"action": "type", "text": 'é "x"\n'}, Type('é "x"\n')),
    ({"action": "key", "keys": ["ctrl", "shift", "t"]}, Key(("ctrl", "shift", "t"))),
    ({"action": "wait", "time": 2}, Wait(2.0)),
    ({"action": "wait", "time": 0.5}, Wait(0.5)),
    ({"action": "terminate", "status": "success"}, Done("success")),
    ({"action": "terminate", "status": "failure"}, Done("failure")),
    ({"action": "answer", "text": "42"}, Answer("42")),
]


@pytest.mark.parametrize(
    ("values", "action"), OFFICIAL, ids=lambda case: json.dumps(case) if isinstance(case, dict) else ""
)
def test_the_official_spelling_is_read_and_written(values, action):
    assert read_arguments(values, SCREEN) == (action, False)
    assert json.dumps(write_arguments(action, SCREEN)) == json.dumps(values)


@pytest.mark.parametrize(
    ("values", "action"),
    [
        ({"action": "click", "coordinate": [500, 500]}, Click(*MIDDLE)),
        ({"action": "click", "coordinate": [500, 500], "button": "right"}, Click(*MIDDLE, "right")),
        ({"action": "scroll", "direction": "down", "amount": 3}, Scroll(dy=-3)),
        ({"action": "scroll", "direction": "up", "amount": 1, "coordinate": [500, 500]}, Scroll(dy=1, x=960, y=540)),
        ({"action": "scroll", "direction": "right", "amount": 2}, Scroll(dx=2)),
        ({"action": "scroll", "direction": "left", "amount": 2}, Scroll(dx=-2)),
        ({"action": "key", "text": "ctrl+s"}, Key(("ctrl", "s"))),
        ({"action": "key", "key": "Return"}, Key(("enter",))),
        ({"action": "key", "keys": "ctrl+s"}, Key(("ctrl", "s"))),
        ({"action": "hotkey", "keys": ["ctrl", "s"]}, Key(("ctrl", "s"))),
        ({"action": "press", "key": "esc"}, Key(("esc",))),
        ({"action": "write", "text": "a"}, Type("a")),
        ({"action": "move", "coordinate": [500, 500]}, Move(*MIDDLE)),
        ({"action": "left_click_drag", "end_coordinate": [500, 500]}, Drag(*MIDDLE)),
        (
            {"action": "left_click_drag", "start_coordinate": [0, 0], "end_coordinate": [500, 500]},
            Drag(*MIDDLE, (0, 0)),
        ),
        ({"action": "left_click_drag", "coordinate": [0, 0], "end_coordinate": [500, 500]}, Drag(*MIDDLE, (0, 0))),
        ({"action": "left_click_drag", "coordinate": [0, 0], "coordinate2": [500, 500]}, Drag(*MIDDLE, (0, 0))),
        ({"action": "drag", "start_coordinate": [0, 0], "end_coordinate": [500, 500]}, Drag(*MIDDLE, (0, 0))),
        (
            {"action": "left_click", "coordinate": [500, 500], "text": "ctrl+shift"},
            Click(*MIDDLE, keys=("ctrl", "shift")),
        ),
    ],
    ids=lambda case: json.dumps(case) if isinstance(case, dict) else "",
)
def test_older_spellings_keep_their_meaning(values, action):
    assert read_arguments(values, SCREEN) == (action, True)


def test_what_official_calls_leave_open():
    assert read(action="wait")[0] == Wait(1.0)
    assert read(action="type", text="a", coordinate=None)[0] == Type("a"), "null is the same as absent"
    assert read(action="left_click", coordinate=[1000, 1000])[0] == Click(1919, 1079)
    assert read(action="left_click", coordinate=[0.4, 999.9])[0] == Click(1, 1079)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "names no action"),
        ({"action": 3}, "names no action"),
        ({"action": "screenshot"}, "There is no action 'screenshot'"),
        ({"action": "left_click"}, r"left_click needs 'coordinate' .* it is missing"),
        ({"action": "left_click", "coordinate": [1, 2, 3]}, r"\[x, y\] with both from 0 to 1000, not \[1, 2, 3\]"),
        ({"action": "left_click", "coordinate": [1001, 0]}, r"not \[1001, 0\]"),
        ({"action": "left_click", "coordinate": [0, -1]}, r"not \[0, -1\]"),
        ({"action": "left_click", "coordinate": ["1", 0]}, r"not \['1', 0\]"),
        ({"action": "left_click", "coordinate": [True, 0]}, r"not \[True, 0\]"),
        ({"action": "left_click", "coordinate": [float("nan"), 0]}, r"not \[nan, 0\]"),
        ({"action": "left_click", "coordinate": "[1, 2]"}, "not '"),
        ({"action": "left_click", "coordinate": [1, 2], "pixels": 5}, "left_click does not take 'pixels'"),
        ({"action": "type", "text": "a", "coordinate": [1, 2]}, "type does not take 'coordinate'"),
        ({"action": "click", "coordinate": [1, 2], "button": "fourth"}, "needs 'button'"),
        ({"action": "click", "coordinate": [1, 2], "button": ["left"]}, "needs 'button'"),
        ({"action": "type"}, "type needs 'text'"),
        ({"action": "type", "text": 5}, "type needs 'text' to be text, not 5"),
        ({"action": "key"}, "key needs 'keys'"),
        ({"action": "key", "keys": []}, "The list of keys is empty"),
        ({"action": "key", "keys": [1]}, "key needs 'keys'"),
        ({"action": "key", "keys": ["hyper"]}, "There is no key 'hyper'"),
        ({"action": "scroll"}, "scroll needs 'pixels' to be a number; it is missing"),
        ({"action": "scroll", "pixels": "10"}, "scroll needs 'pixels'"),
        ({"action": "scroll", "pixels": 100_000}, "from -100 to 100, not 1000"),
        ({"action": "scroll", "direction": "in", "amount": 1}, "needs 'direction'"),
        ({"action": "scroll", "direction": "up", "amount": -1}, "needs 'amount'"),
        ({"action": "wait", "time": "long"}, "wait needs 'time'"),
        ({"action": "wait", "time": 3600}, "from 0 to 60.0, not 3600"),
        ({"action": "terminate"}, "terminate needs 'status' to be success or failure; it is missing"),
        ({"action": "terminate", "status": "maybe"}, "not 'maybe'"),
        ({"action": "answer", "text": None}, "answer needs 'text'"),
    ],
    ids=lambda case: repr(case) if isinstance(case, dict) else "",
)
def test_bad_arguments_are_one_sentence(values, message):
    with pytest.raises(ActionError, match=message) as raised:
        read_arguments(values, SCREEN)
    assert str(raised.value).endswith(".")
