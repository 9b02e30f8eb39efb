"""How widgets react: each test drives a small hand-made desktop and looks at what applications saw."""

import re
from dataclasses import replace

import pytest

from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.scene import Part, Scene
from flywheel.errors import EvaluatorError, SetupError
from flywheel.types import Action, Answer, Click, Code, Done, Drag, Key, Move, Scroll, Type, Wait
from tests.envs.support import at, middle, scene, task_of, wants

FORM = scene(
    Part("field", "Name", at(0)),
    Part("field", "Sort", at(1), text="old"),
    Part("check", "Wrap", at(2)),
    Part("button", "Save", at(3), submits=True),
    Part("button", "Open", at(4)),
)


def desktop(start: Scene, *actions: Action) -> SimulatedDesktop:
    """The desktop after some actions, all of which must have been executed."""
    shown = SimulatedDesktop()
    shown.load(start)
    for action in actions:
        result = shown.step(action)
        assert result.executed, result.error
    return shown


def events(start: Scene, *actions: Action) -> list[list[object]]:
    return desktop(start, *actions).state()["events"]


def test_buttons_are_pressed_in_order_and_twice_by_a_double_click() -> None:
    assert events(FORM, Click(*middle(4)), Click(*middle(4), count=2)) == [["press", "Open"]] * 3
    assert events(FORM, Click(*middle(4), button="right"), Click(*middle(4), button="middle")) == []


def test_typing_goes_into_the_focused_field_only() -> None:
    assert desktop(FORM, Type("blue")).state()["fields"] == {"Name": "", "Sort": "old"}
    typed = desktop(FORM, Click(*middle(0)), Type("blue"), Click(*middle(12)), Type("red"))
    assert typed.state()["fields"]["Name"] == "blue"


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ([Type("er")], "older"),
        ([Key(("ctrl", "a")), Type("new")], "new"),
        ([Click(*middle(1), count=3), Type("new")], "new"),
        ([Key(("backspace",))], "ol"),
        ([Key(("control", "a")), Key(("BackSpace",))], ""),
        ([Key(("x",)), Key(("shift", "y")), Key(("space",))], "oldxY "),
    ],
)
def test_editing_a_field(actions: list[Action], text: str) -> None:
    assert desktop(FORM, Click(*middle(1)), *actions).state()["fields"]["Sort"] == text


def test_selected_text_looks_selected() -> None:
    shown = desktop(FORM, Click(*middle(1)))
    before = shown.observe().screenshot
    shown.step(Key(("ctrl", "a")))
    assert shown.widgets()[1].state == "filled selected"
    assert shown.observe().screenshot != before


def test_a_submitting_button_hands_over_what_it_sees() -> None:
    actions = [Click(*middle(2)), Click(*middle(0)), Type("red"), Click(*middle(3)), Type("late")]
    assert events(FORM, *actions) == [["submit", "Save", {"Name": "red", "Sort": "old", "Wrap": True}]]


def test_tab_moves_the_focus_in_reading_order_and_enter_presses() -> None:
    tab, back, enter = Key(("tab",)), Key(("shift", "tab")), Key(("enter",))
    assert desktop(FORM, tab, tab, tab, Key(("space",))).state()["checks"] == {"Wrap": True}
    assert events(FORM, back, enter) == [["press", "Open"]]
    assert events(FORM, tab, back, Type("\n")) == [["press", "Open"]]
    assert desktop(FORM, Type("\tblue")).state()["fields"]["Name"] == "blue"
    assert events(FORM, tab, Type("red\n")) == [["enter", "Name", "red"]]


def test_shortcuts_are_seen_with_the_focused_widget() -> None:
    assert events(FORM, Key(("s", "ctrl"))) == [["shortcut", "ctrl+s", None]]
    assert events(FORM, Click(*middle(0)), Key(("Ctrl", "Shift", "S"))) == [["shortcut", "ctrl+shift+s", "Name"]]


MENUS = scene(
    Part("menu", "Edit", at(0)),
    Part("menu", "File", at(1)),
    Part("icon", "Mail", at(2)),
    Part("bin", "Cut", at(3)),
    Part("item", "Copy", at(10), parent=0),
    Part("item", "Find", at(11), parent=0),
    Part("item", "Save", at(10), parent=1),
    Part("item", "Send", at(12), parent=2),
)


def test_menus_show_their_items_and_close_again() -> None:
    def captions(*actions: Action) -> set[str]:
        return {widget.caption for widget in desktop(MENUS, *actions).widgets() if widget.kind == "item"}

    edit, file = Click(*middle(0)), Click(*middle(1))
    assert captions() == set()
    assert captions(edit) == {"Copy", "Find"}
    assert captions(edit, file) == {"Save"}
    for closing in (edit, Click(*middle(19)), Key(("esc",)), Click(*middle(10))):
        assert captions(edit, closing) == set()


def test_choosing_and_context_menus() -> None:
    assert events(MENUS, Click(*middle(10))) == []
    assert events(MENUS, Click(*middle(1)), Click(*middle(10))) == [["choose", "File", "Save"]]
    assert events(MENUS, Click(*middle(2), button="right"), Click(*middle(12))) == [["choose", "Mail", "Send"]]
    assert events(MENUS, Click(*middle(0), button="right"), Click(*middle(10))) == []


def test_icons_open_on_a_double_click_and_can_be_dropped() -> None:
    assert events(MENUS, Click(*middle(2))) == []
    assert events(MENUS, Click(*middle(2), count=2), Key(("enter",))) == [["open", "Mail"]] * 2
    assert events(MENUS, Drag(*middle(19), start=middle(2)), Drag(*middle(2), start=middle(3))) == []
    dropped = desktop(MENUS, Move(*middle(2)), Drag(*middle(3)))
    assert dropped.state()["events"] == [["drop", "Mail", "Cut"]]
    assert "Mail" not in {widget.caption for widget in dropped.widgets()}
    assert dropped.step(Click(*middle(2), count=2)).executed
    assert len(dropped.state()["events"]) == 1


def test_a_drag_within_one_widget_is_a_click() -> None:
    x, y = middle(4)
    assert events(FORM, Drag(x + 3, y + 3, start=(x, y))) == [["press", "Open"]]


DIALOG = scene(
    Part("button", "Close", at(0)),
    Part("field", "Name", at(1)),
    Part("dialog", "Undo", at(5), parent=0),
    Part("button", "Yes", at(6), parent=2),
    Part("button", "No", at(7), parent=2),
)


def test_a_dialog_takes_everything_until_it_is_answered() -> None:
    press = Click(*middle(0))
    blocked = [Click(*middle(1)), Type("red"), Click(*middle(0)), Key(("ctrl", "s")), Key(("tab",)), Click(*middle(5))]
    shown = desktop(DIALOG, press, *blocked)
    assert shown.state()["events"] == [["press", "Close"]]
    assert shown.state()["fields"] == {"Name": ""}
    shown.step(Click(*middle(7)))
    assert shown.state()["events"][1:] == [["answer", "Undo", "No"]]
    assert {widget.caption for widget in shown.widgets()} == {"Close", "Name"}
    assert events(DIALOG, press, Key(("escape",))) == [["press", "Close"], ["dismiss", "Undo"]]
    assert events(DIALOG, press, Click(*middle(6), count=2)) == [["press", "Close"], ["answer", "Undo", "Yes"]]


LIST = scene(
    Part("list", "File", at(0), slots=(at(5), at(10))),
    *(Part("row", name, parent=0) for name in ("Copy", "Cut", "Find", "Mail", "New")),
)


@pytest.mark.parametrize(
    ("scrolls", "rows"),
    [
        ([], ["Copy", "Cut"]),
        ([Scroll(-1, 0, *middle(0))], ["Cut", "Find"]),
        ([Scroll(-9, 0, *middle(5))], ["Mail", "New"]),
        ([Scroll(-2, 0, *middle(0)), Scroll(1, 0, *middle(10))], ["Cut", "Find"]),
        ([Move(*middle(0)), Scroll(-2)], ["Find", "Mail"]),
        ([Scroll(-2, 0, *middle(19)), Scroll(5, 0, *middle(0)), Scroll(0, -3, *middle(0))], ["Copy", "Cut"]),
    ],
)
def test_lists_scroll_a_row_a_notch(scrolls: list[Action], rows: list[str]) -> None:
    shown = desktop(LIST, *scrolls)
    assert [widget.caption for widget in shown.widgets() if widget.kind == "row"] == rows
    shown.step(Click(*middle(5)))
    assert shown.state()["events"] == [["select", "File", rows[0]]]


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (Click(-1, 3), r"point \(-1, 3\) is outside"),
        (Move(0, 128), "outside the 160 x 128 screen"),
        (Drag(5, 5, start=(500, 5)), r"\(500, 5\) is outside"),
        (Scroll(1, 0, 160, 0), "outside"),
        (Key(("hyper",)), "no key named 'hyper'"),
        (Key(()), "No key was named"),
        (Code("print(1)"), "not executed on the simulated desktop"),
    ],
)
def test_what_cannot_be_executed_says_so_and_changes_nothing(action: Action, error: str) -> None:
    shown = desktop(FORM)
    before, picture = shown.state(), shown.observe().screenshot
    result = shown.step(action)
    assert not result.executed
    assert result.error is not None
    assert result.observation.last_result == result.error
    assert re.search(error, result.error)
    assert shown.state() == before
    assert result.observation.screenshot == picture


def test_waiting_and_empty_clicks_are_executed_and_change_nothing() -> None:
    shown = desktop(FORM)
    picture = shown.observe().screenshot
    for action in (Wait(3.0), Click(*middle(19)), Move(1, 1), Key(("up",)), Scroll(-3)):
        result = shown.step(action)
        assert result.executed
        assert result.observation.screenshot is picture
    assert shown.state()["events"] == []


def test_an_answer_ends_the_episode_and_reaches_the_checker() -> None:
    shown = SimulatedDesktop()
    shown.reset(task_of(FORM, wants({"answer": "blue"})))
    assert shown.step(Answer("blue")).done
    assert shown.evaluate() == 1.0


def test_side_effects_fail_and_partial_checkers_look_at_their_part() -> None:
    shown = SimulatedDesktop()
    wanted = wants({"events": [["press", "Open"]], "checks": {"Wrap": False}})
    for extra, score in ((None, 1.0), (Click(*middle(3)), 0.0), (Click(*middle(2)), 0.0)):
        shown.reset(task_of(FORM, wanted))
        for action in [extra, Click(*middle(4)), Done()] if extra else [Click(*middle(4)), Done()]:
            shown.step(action)
        assert shown.evaluate() == score
    shown.reset(task_of(FORM, wanted | {"conj": "or"}))
    shown.step(Click(*middle(3)))
    assert shown.evaluate() == 1.0


def test_a_wrong_checker_is_no_verdict() -> None:
    shown = SimulatedDesktop()
    shown.reset(task_of(FORM, {"func": "guess"}))
    with pytest.raises(EvaluatorError, match="'guess'"):
        shown.evaluate()
    shown.load(FORM)
    with pytest.raises(EvaluatorError, match="no task"):
        shown.evaluate()


def test_malformed_data_fails_the_set_up() -> None:
    task = task_of(FORM)
    with pytest.raises(SetupError, match=r"cannot be set up: .*screen, layout and widgets"):
        SimulatedDesktop().reset(replace(task, config=({"type": "simulated_desktop", "parameters": {}},)))
    with pytest.raises(SetupError, match="exactly one"):
        SimulatedDesktop().reset(replace(task, config=()))
