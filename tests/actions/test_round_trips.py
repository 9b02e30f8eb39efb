"""Text -> Action -> text -> Action, for everything that a space can say and anything that a model can write."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.actions.base import ActionSpace, Parsed
from flywheel.actions.checks import MAX_NOTCHES, MAX_WAIT_SECONDS
from flywheel.actions.computer_use import ComputerUse
from flywheel.actions.keys import QEMU_NAMES, chord
from flywheel.actions.pyautogui import PyAutoGUI
from flywheel.actions.sendkey import SendKey
from flywheel.errors import ActionError
from flywheel.types import Action, Answer, Click, Code, Done, Drag, Key, Move, Scroll, Size, Type, Wait

SCREEN = Size(160, 128)
GRID_SCREENS = st.builds(Size, st.integers(1, 1000), st.integers(1, 1000))
"""Screens on which the 1000 x 1000 grid tells every pixel apart."""

ANY_SCREEN = st.builds(Size, st.integers(1, 8000), st.integers(1, 8000))

NAMED_KEYS = ["ctrl", "alt", "shift", "super", "enter", "esc", "tab", "space", "pageup", "menu", "printscreen", "f12"]

# Plain text, and the strings that end a completion or become control tokens when written as they are.
TEXTS = st.one_of(
    st.text(max_size=20),
    st.lists(
        st.sampled_from(["</tool_call>", "<tool_call>", "</answer>", "<|im_end|>", "<thinking>", "\\", "<", "'", '"']),
        max_size=4,
    ).map("".join),
)
LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<\r\n"), min_size=1, max_size=20)
WAITS = st.builds(Wait, st.floats(0, MAX_WAIT_SECONDS))
DONES = st.builds(Done, st.sampled_from(["success", "failure"]))

THOUGHTS = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=30)
BRIEFS = st.none() | st.from_regex(r"[ -;=-~é]{0,20}", fullmatch=True)


def chords(keys: st.SearchStrategy[str], min_size: int = 1) -> st.SearchStrategy[tuple[str, ...]]:
    lists = st.lists(keys, min_size=min_size, max_size=3)
    return lists.map(lambda names: chord(names) if names else ())


ANY_KEY = st.one_of(st.sampled_from(NAMED_KEYS), st.sampled_from("aZ9+-!é<"))
QEMU_KEY = st.sampled_from([*NAMED_KEYS, *QEMU_NAMES, "a", "z", "0"])


def points(screen: Size) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, screen.width - 1), st.integers(0, screen.height - 1))


def clicks(screen: Size, sorts: list[tuple[str, int]]) -> st.SearchStrategy[Action]:
    def build(at: tuple[int, int], sort: tuple[str, int], keys: tuple[str, ...]) -> Action:
        return Click(*at, sort[0], sort[1], keys)  # type: ignore[arg-type]

    return st.builds(build, points(screen), st.sampled_from(sorts), chords(ANY_KEY, min_size=0))


def scrolls(screen: Size) -> st.SearchStrategy[Action]:
    def build(amount: int, horizontal: bool, at: tuple[int, int] | None) -> Action:
        x, y = at or (None, None)
        return Scroll(dx=amount, x=x, y=y) if horizontal and amount else Scroll(dy=amount, x=x, y=y)

    return st.builds(build, st.integers(-MAX_NOTCHES, MAX_NOTCHES), st.booleans(), st.none() | points(screen))


def pointer_actions(screen: Size) -> st.SearchStrategy[Action]:
    moves = st.builds(lambda at: Move(*at), points(screen))
    drags = st.builds(lambda end, start: Drag(*end, start), points(screen), st.none() | points(screen))
    return st.one_of(moves, drags, scrolls(screen))


def computer_use_actions(screen: Size) -> st.SearchStrategy[Action]:
    sorts = [("left", 1), ("left", 2), ("left", 3), ("right", 1), ("middle", 1)]
    words = st.one_of(st.builds(Type, TEXTS), st.builds(Answer, TEXTS), st.builds(Key, chords(ANY_KEY)))
    return st.one_of(clicks(screen, sorts), pointer_actions(screen), words, WAITS, DONES)


def pyautogui_actions(screen: Size) -> st.SearchStrategy[Action]:
    sorts = [(button, count) for button in ("left", "right", "middle") for count in (1, 2, 3)]
    words = st.one_of(st.builds(Type, TEXTS), st.builds(Key, chords(ANY_KEY)))
    return st.one_of(clicks(screen, sorts), pointer_actions(screen), words, WAITS, DONES)


def sendkey_actions(_: Size) -> st.SearchStrategy[Action]:
    lines = st.builds(lambda line, enter: Type(line + "\n" * enter), LINES, st.booleans())
    return st.one_of(lines, st.just(Type("\n")), st.builds(Key, chords(QEMU_KEY)), WAITS, DONES)


def round_trip(space: ActionSpace, action, screen: Size, thinking: str | None, brief: str | None) -> None:
    text = space.format(action, screen, thinking=thinking, brief=brief)
    parsed = space.parse(text, screen)
    assert parsed == Parsed(action, fallback=False, format=parsed.format, thinking=thinking)
    again = space.format(parsed.action, screen, thinking=thinking, brief=brief)
    assert again == text
    if space.stop is not None and space.stop in text:
        assert text.index(space.stop) + len(space.stop) == len(text), "the stop string would cut the answer short"


@settings(max_examples=400, deadline=None)
@given(st.data(), THOUGHTS, BRIEFS)
def test_computer_use_says_and_reads_the_same(data, thinking, brief):
    screen = data.draw(GRID_SCREENS)
    round_trip(ComputerUse(), data.draw(computer_use_actions(screen)), screen, thinking, brief)


@settings(max_examples=400, deadline=None)
@given(st.data(), THOUGHTS, BRIEFS)
def test_pyautogui_says_and_reads_the_same(data, thinking, brief):
    screen = data.draw(ANY_SCREEN)
    round_trip(PyAutoGUI(), data.draw(pyautogui_actions(screen)), screen, thinking, brief)


@settings(max_examples=400, deadline=None)
@given(st.data(), THOUGHTS, BRIEFS)
def test_sendkey_says_and_reads_the_same(data, thinking, brief):
    round_trip(SendKey(), data.draw(sendkey_actions(SCREEN)), SCREEN, thinking, brief)


@pytest.mark.parametrize("space", [ComputerUse(), PyAutoGUI(), SendKey()], ids=lambda space: space.name)
class TestAnyText:
    """Model text never raises, and always gives either an action or a sentence."""

    @staticmethod
    def check(space: ActionSpace, text: str) -> None:
        parsed = space.parse(text, SCREEN)
        assert (parsed.action is None) == (parsed.error is not None)
        if parsed.error is not None:
            assert parsed.error.endswith(".")
            assert "\n" not in parsed.error
            assert len(parsed.error) < 400

    @settings(max_examples=150, deadline=None)
    @given(st.text(max_size=60))
    def test_free_text(self, space, text):
        self.check(space, text)

    @settings(max_examples=150, deadline=None)
    @given(st.text(max_size=40), st.sampled_from(["tool_call", "answer", "action", "thinking"]), st.booleans())
    def test_text_in_tags(self, space, text, tag, closed):
        self.check(space, f"<{tag}>{text}" + (f"</{tag}>" if closed else ""))

    @settings(max_examples=300, deadline=None)
    @given(
        st.sampled_from([
            "left_click", "left_click_drag", "mouse_move", "scroll", "hscroll", "type", "key", "wait", "terminate",
            "answer", "click", "drag", "hotkey", "x",
        ]),
        st.dictionaries(
            st.sampled_from([
                "coordinate", "start_coordinate", "end_coordinate", "text", "keys", "pixels", "time", "status",
                "button", "direction", "amount", "key",
            ]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
                lambda inner: st.lists(inner, max_size=3),
                max_leaves=4,
            ),
            max_size=3,
        ),
    )  # fmt: skip
    def test_tool_calls_with_any_arguments(self, space, action, arguments):
        call = {"name": "computer_use", "arguments": {"action": action, **arguments}}
        self.check(space, f"<tool_call>{json.dumps(call)}</tool_call>")

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from([
                    "click", "moveTo", "dragTo", "mouseDown", "mouseUp", "scroll", "write", "press", "hotkey",
                    "keyDown", "keyUp", "sleep", "alert",
                ]),
                st.lists(st.integers(-9, 300) | st.floats() | st.sampled_from(["a", "ctrl", "", "ctrl+s"]), max_size=4),
            ),
            max_size=4,
        )
    )  # fmt: skip
    def test_scripts_with_any_calls(self, space, calls):
        lines = [f"pyautogui.{name}({', '.join(map(repr, arguments))})" for name, arguments in calls]
        self.check(space, "<answer>" + "\n".join(lines) + "</answer>")


@pytest.mark.parametrize("space", [ComputerUse(), PyAutoGUI(), SendKey()], ids=lambda space: space.name)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "<tool_call>",
        "<tool_call>" + "[" * 100_000,
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": 1' + "0" * 5000 + "}}",
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": 1' + "0" * 400 + "}}",
        '<tool_call>{"name": "computer_use", "arguments": {"action": "scroll", "pixels": 1e308}}',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "\\ud800"}}',
        "<answer>" + "(" * 100_000 + "</answer>",
        "<answer>" + "-" * 100_000 + "1</answer>",
        "<answer>pyautogui" + ".x" * 50_000 + "()</answer>",
        "<answer>pyautogui.click(1" + "0" * 5000 + ", 2)</answer>",
        "<answer>pyautogui.click(1e999, 2)</answer>",
        "<answer>pyautogui.write('\\ud800')</answer>",
        "<answer>\x00</answer>",
        "<action>wait nan</action>",
        "<action>wait 1e999</action>",
    ],
    ids=lambda text: text[:60],
)
def test_hostile_text_is_an_error_sentence(space, text):
    parsed = space.parse(text, SCREEN)
    assert parsed.action is None
    assert parsed.error
    assert len(parsed.error) < 400


@pytest.mark.parametrize("space", [ComputerUse(), PyAutoGUI(), SendKey()], ids=lambda space: space.name)
@pytest.mark.parametrize(
    "action",
    [
        Code("print(1)"),
        Click(160, 0),
        Click(0, 128),
        Click(-1, 0),
        Click(1, 1, count=4),
        Click(1, 1, keys=("Control",)),
        Drag(1, 1, start=(500, 1)),
        Scroll(dy=1, dx=1),
        Scroll(dy=1, x=5),
        Scroll(dy=101),
        Key(()),
        Key(("Return",)),
        Key(("ctrl+s",)),
        Type("\ud800"),
        Wait(float("nan")),
        Wait(-1.0),
        Wait(61.0),
    ],
    ids=repr,
)
def test_what_no_space_can_say_is_refused(space, action):
    with pytest.raises(ActionError, match=r"\.$"):
        space.format(action, SCREEN)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (ComputerUse(), Click(1, 1, "right", 2)),
        (PyAutoGUI(), Answer("42")),
        (SendKey(), Click(1, 1)),
        (SendKey(), Type("two\nlines")),
        (SendKey(), Type("</action>")),
        (SendKey(), Type("")),
        (SendKey(), Key(("!",))),
        (SendKey(), Key(("A",))),
    ],
    ids=repr,
)
def test_what_one_space_cannot_say_is_refused(space, action):
    with pytest.raises(ActionError, match=rf"{space.name} cannot say"):
        space.format(action, SCREEN)


@pytest.mark.parametrize("space", [ComputerUse(), PyAutoGUI(), SendKey()], ids=lambda space: space.name)
@pytest.mark.parametrize(
    ("thinking", "brief"),
    [
        ("</thinking>", None),
        ("see <tool_call>", None),
        ("<|im_end|>", None),
        (None, "a\nb"),
        (None, "a\n"),
        (None, "</answer>"),
    ],
)
def test_thinking_that_would_be_markup_is_refused(space, thinking, brief):
    with pytest.raises(ActionError):
        space.format(Wait(), SCREEN, thinking=thinking, brief=brief)
