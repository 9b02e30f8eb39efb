"""The envelope of `computer_use`, its tool schema and its fallbacks."""

import json

import jinja2
import pytest

from flywheel.actions.base import Parsed
from flywheel.actions.computer_use import ComputerUse
from flywheel.actions.tool_arguments import READERS
from flywheel.types import Click, Done, Key, Size, Type

SPACE = ComputerUse()
SCREEN = Size(160, 128)
CALL = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 500]}}'


def test_the_text_is_exactly_this():
    assert SPACE.format(Click(112, 80), SCREEN, thinking="button Save 13", brief="click Save") == (
        "<thinking>button Save 13</thinking>\n"
        "Action: click Save\n"
        "<tool_call>\n"
        '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [700, 625]}}\n'
        "</tool_call>"
    )
    assert SPACE.format(Done(), SCREEN) == (
        '<tool_call>\n{"name": "computer_use", "arguments": {"action": "terminate", "status": "success"}}\n</tool_call>'
    )


def test_an_empty_thinking_block_is_not_the_same_as_none():
    assert SPACE.parse(SPACE.format(Done(), SCREEN, thinking=""), SCREEN).thinking == ""
    assert SPACE.parse(SPACE.format(Done(), SCREEN), SCREEN).thinking is None


@pytest.mark.parametrize(
    ("text", "fallback"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", False),
        (f"<tool_call>{CALL}</tool_call>", False),
        (f"Action: click\n<tool_call>\n{CALL}\n</tool_call>\n", False),
        (f"<think>hm</think>\n\n<tool_call>\n{CALL}\n</tool_call>", False),
        (f"<tool_call>\n{CALL}\n", True),
        (f"<tool_call>\n{CALL}", True),
    ],
)
def test_the_closing_tag_decides_over_the_fallback(text, fallback):
    parsed = SPACE.parse(text, SCREEN)
    assert (parsed.action, parsed.fallback, parsed.format) == (Click(80, 64), fallback, "tool_call")


def test_the_stop_string_is_the_closing_tag():
    assert SPACE.stop == "</tool_call>"
    assert SPACE.format(Type("</tool_call><|im_end|>"), SCREEN).count("</tool_call>") == 1
    assert "<|" not in SPACE.format(Type("</tool_call><|im_end|>"), SCREEN)


def test_a_call_drafted_in_the_thinking_is_not_an_action():
    text = f"<thinking>maybe <tool_call>{CALL}</tool_call></thinking>\n" + SPACE.format(Key(("enter",)), SCREEN)
    assert SPACE.parse(text, SCREEN).action == Key(("enter",))


def test_typed_text_may_hold_anything_that_json_can():
    call = '{"name": "computer_use", "arguments": {"action": "type", "text": "<tool_call>\n</tool_call>"}}'
    assert SPACE.parse(f"<tool_call>{call}</tool_call>", SCREEN) == Parsed(
        Type("<tool_call>\n</tool_call>"), format="tool_call"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("I clicked it.", "There is no action in the answer"),
        ("", "There is no action in the answer"),
        ("<tool_call>\nleft_click(5, 5)\n</tool_call>", "not valid JSON"),
        (f"<tool_call>{CALL[:-1]}</tool_call>", "not valid JSON"),
        (f"<tool_call>{CALL}}}</tool_call>", "goes on after its JSON object"),
        (f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>", "several tool calls"),
        (f"<tool_call>{CALL}\n<tool_call>{CALL}</tool_call>", "several tool calls"),
        ("<tool_call>[]</tool_call>", "must be"),
        ('<tool_call>{"name": "computer_use"}</tool_call>', "must be"),
        ('<tool_call>{"name": "computer_use", "arguments": "{}"}</tool_call>', "must be"),
        ('<tool_call>{"name": "browser", "arguments": {}}</tool_call>', "There is no tool 'browser'"),
        ('<tool_call>{"arguments": {"action": "wait"}}</tool_call>', "There is no tool 'None'"),
        ('<tool_call>{"name": "computer_use", "arguments": {"action": "fly"}}</tool_call>', "There is no action 'fly'"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text, message):
    parsed = SPACE.parse(text, SCREEN)
    assert parsed.action is None
    assert message in (parsed.error or "")


def test_older_formats_are_fallbacks_in_pixels():
    parsed = SPACE.parse("<thinking>t</thinking><answer>pyautogui.click(10, 20)</answer>", SCREEN)
    assert parsed == Parsed(Click(10, 20), fallback=True, format="answer", thinking="t")


def test_older_spellings_inside_the_tags_are_no_fallback():
    call = '{"name": "computer_use", "arguments": {"action": "click", "coordinate": [500, 500]}}'
    parsed = SPACE.parse(f"<tool_call>\n{call}\n</tool_call>", SCREEN)
    assert parsed == Parsed(Click(80, 64), format="tool_call/older")


def test_the_schema_is_complete_and_serialisable():
    (tool,) = json.loads(json.dumps(SPACE.tools()))
    function = tool["function"]
    properties = function["parameters"]["properties"]
    assert (tool["type"], function["name"]) == ("function", "computer_use")
    assert "1000x1000" in function["description"]
    assert properties["action"]["enum"] == list(READERS)
    assert all(f"`{name}`" in properties["action"]["description"] for name in READERS)
    official = {"action", "keys", "text", "coordinate", "pixels", "time", "status"}
    assert set(properties) == official | {"start_coordinate"}
    assert function["parameters"]["required"] == ["action"]


def test_each_call_gets_a_schema_of_its_own():
    SPACE.tools()[0]["function"]["parameters"]["required"].append("text")
    assert SPACE.tools()[0]["function"]["parameters"]["required"] == ["action"]


def test_the_schema_goes_through_a_chat_template():
    template = jinja2.Template("{% for tool in tools %}{{ tool | tojson }}{% endfor %}")
    assert '"left_click"' in template.render(tools=SPACE.tools())


def test_the_system_prompt_is_short_and_says_how_to_end():
    prompt = SPACE.system_prompt()
    assert len(prompt) < 400
    assert "success" in prompt
    assert "failure" in prompt
