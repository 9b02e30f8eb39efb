"""The keyboard-only space."""

import pytest

from flywheel.actions.base import Parsed
from flywheel.actions.sendkey import SendKey
from flywheel.types import Done, Key, Size, Type, Wait

SPACE = SendKey()
SCREEN = Size(1024, 768)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>sendkey ctrl-alt-delete</action>", Key(("ctrl", "alt", "delete"))),
        ("<action>sendkey meta_l-r</action>", Key(("super", "r"))),
        ("<action>sendkey bracket_left</action>", Key(("[",))),
        ("<action>sendkey minus</action>", Key(("-",))),
        ("<action>type notepad</action>", Type("notepad")),
        ("<action>type  two  spaces </action>", Type(" two  spaces ")),
        ("<action>typeline notepad</action>", Type("notepad\n")),
        ("<action>typeline </action>", Type("\n")),
        ("<action>wait 2</action>", Wait(2.0)),
        ("<action>wait</action>", Wait(1.0)),
        ("<done/>", Done("success")),
        ("<fail/>", Done("failure")),
    ],
)
def test_verbs(text, action):
    assert SPACE.parse(text, SCREEN) == Parsed(action, format="action")


def test_written_as_qemu_calls_them():
    assert SPACE.format(Key(("ctrl", "alt", "delete")), SCREEN) == "<action>sendkey ctrl-alt-delete</action>"
    assert SPACE.format(Key(("super", "pageup", "-")), SCREEN) == "<action>sendkey meta_l-pgup-minus</action>"
    assert SPACE.format(Type("dir\n"), SCREEN) == "<action>typeline dir</action>"
    assert SPACE.format(Done("failure"), SCREEN, brief="give up") == "Action: give up\n<fail/>"


def test_tags_on_lines_of_their_own_add_no_text():
    assert SPACE.parse("<action>\ntype dir\n</action>", SCREEN).action == Type("dir")
    assert SPACE.parse("<action>\ntypeline dir\n</action>", SCREEN).action == Type("dir\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<action>sendkey</action>", "sendkey needs one chord"),
        ("<action>sendkey a b</action>", "sendkey needs one chord"),
        ("<action>sendkey KEYS</action>", "There is no key 'KEYS'"),
        ("<action>sendkey ctrl--</action>", "There is no key ''"),
        ("<action>type</action>", "type needs its text"),
        ("<action>wait long</action>", "wait needs a number of seconds, not 'long'"),
        ("<action>wait 2 3</action>", "wait does not take '2 3'"),
        ("<action>wait 999</action>", "from 0 to 60.0"),
        ("<action>done now</action>", "done does not take 'now'"),
        ("<action>click 5 5</action>", "There is no verb in 'click 5 5'"),
        ("<action>sendkeys a</action>", "There is no verb in 'sendkeys a'"),
        ("<action></action>", "There is no verb"),
        ("<action>sendkey a</action><done/>", "2 actions"),
        ("press enter", "There is no action in the answer"),
    ],
)
def test_bad_verbs_are_one_sentence(text, message):
    parsed = SPACE.parse(text, SCREEN)
    assert parsed.action is None
    assert message in (parsed.error or "")


def test_an_unclosed_tag_is_a_fallback():
    assert SPACE.parse("<action>sendkey ret", SCREEN) == Parsed(Key(("enter",)), fallback=True, format="action")
