"""The `computer_use` action space: Qwen3-VL's official tool, called inside <tool_call> tags.

    <thinking>button Save 13</thinking>
    Action: click Save
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [700, 625]}}
    </tool_call>

The thinking block and the Action line are optional when read.
"""

import dataclasses
import json
from typing import Any

from flywheel.actions import legacy
from flywheel.actions.base import Parsed, quote
from flywheel.actions.envelope import escape_markup, split_thinking, wrap
from flywheel.actions.tool_arguments import GRID, PIXELS_PER_NOTCH, READERS, read_arguments, write_arguments
from flywheel.errors import ActionError
from flywheel.types import Action, Size

OPEN, CLOSE = "<tool_call>", "</tool_call>"

# Models put raw line breaks into JSON strings; `strict=False` reads them.
_DECODER = json.JSONDecoder(strict=False)

_DESCRIPTION = f"""Use a mouse and keyboard to interact with a computer through screenshots.
* Whatever its resolution, the screen is a {GRID}x{GRID} grid; [0, 0] is top left, [{GRID}, {GRID}] bottom right.
* Click in the middle of an element, not on its edge.
* Programs may need time to react: wait, then look again."""

_ACTIONS = """The action to perform:
* `key`: press the keys in order, then release them in reverse order.
* `type`: type text on the keyboard.
* `mouse_move`: move the cursor to the coordinate.
* `left_click`, `right_click`, `middle_click`, `double_click`, `triple_click`: click at the coordinate.
* `left_click_drag`: press the left button at start_coordinate (else where the cursor is), release it at coordinate.
* `scroll`, `hscroll`: turn the mouse wheel vertically or horizontally.
* `wait`: wait for a number of seconds.
* `terminate`: end the task and report its status; failure says that it cannot be done.
* `answer`: end the task with an answer."""


class ComputerUse:
    """Coordinates on a relative 1000 x 1000 grid; `stop` is part of the text.

    Older formats (see `legacy.py`) and a call without its closing tag are read with `fallback=True`; the cookbook's
    older names inside the tags are read as `format="tool_call/older"` and are no fallback.
    """

    name = "computer_use"
    version = 1
    stop: str | None = CLOSE

    @property
    def id(self) -> str:
        return f"{self.name}/{self.version}"

    def system_prompt(self) -> str:
        return (
            "You operate a computer. Look at the screenshot, say in one line `Action: ...` what you do next, then call "
            "computer_use once. When the task is done, terminate with status success; when it cannot be done, with "
            "status failure."
        )

    def tools(self) -> list[dict[str, Any]]:
        number = {"type": "number", "minimum": 0, "maximum": GRID}
        point = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        clicks = [name for name in READERS if name.endswith("_click")]
        properties = {
            "action": {"type": "string", "enum": list(READERS), "description": _ACTIONS},
            "keys": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Required only by `key`. With a click: keys held down meanwhile.",
            },
            "text": {"type": "string", "description": "Required only by `type` and `answer`."},
            "coordinate": {
                **point,
                "description": f"[x, y] on the {GRID}x{GRID} grid, from the left and from the top. Required only by "
                f"`mouse_move`, `left_click_drag`, {', '.join(f'`{name}`' for name in clicks)}.",
            },
            "start_coordinate": {**point, "description": "Where a `left_click_drag` begins; the cursor if left out."},
            "pixels": {
                "type": "number",
                "description": "How far to scroll; positive is up (`scroll`) or right (`hscroll`), "
                f"{PIXELS_PER_NOTCH} is one notch of the wheel. Required only by `scroll` and `hscroll`.",
            },
            "time": {"type": "number", "description": "Seconds. Required only by `wait`."},
            "status": {
                "type": "string",
                "enum": ["success", "failure"],
                "description": "Required only by `terminate`.",
            },
        }
        parameters = {"type": "object", "properties": properties, "required": ["action"]}
        function = {"name": self.name, "description": _DESCRIPTION, "parameters": parameters}
        return [{"type": "function", "function": function}]

    def parse(self, text: str, screen: Size) -> Parsed:
        thinking, rest = split_thinking(text)
        if OPEN in rest:
            parsed = self._parse_call(rest, screen)
        else:
            parsed = legacy.read(rest, screen) or Parsed(
                None, f"There is no action in the answer; give one call between {OPEN} and {CLOSE}."
            )
        return dataclasses.replace(parsed, thinking=thinking)

    def format(self, action: Action, screen: Size, *, thinking: str | None = None, brief: str | None = None) -> str:
        call = {"name": self.name, "arguments": write_arguments(action, screen)}
        body = escape_markup(json.dumps(call, ensure_ascii=False), "\\u003c")
        return wrap(f"{OPEN}\n{body}\n{CLOSE}", thinking, brief)

    def _parse_call(self, text: str, screen: Size) -> Parsed:
        try:
            call, rest = _decode(text)
            closed = rest.startswith(CLOSE)
            action, older = read_arguments(self._arguments(call), screen)
        except ActionError as error:
            return Parsed(None, str(error), format="tool_call")
        return Parsed(action, fallback=not closed, format="tool_call/older" if older else "tool_call")

    def _arguments(self, call: Any) -> dict[str, Any]:
        if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
            raise ActionError('The tool call must be {"name": "computer_use", "arguments": {...}}.')
        if call.get("name") != self.name:
            raise ActionError(f"There is no tool {quote(str(call.get('name')))}; call {self.name}.")
        arguments: dict[str, Any] = call["arguments"]
        return arguments


def _decode(text: str) -> tuple[Any, str]:
    """The JSON value after the opening tag, and the text after it; raises `ActionError`."""
    start = text.index(OPEN) + len(OPEN)
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        call, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise ActionError("The tool call is not valid JSON; write one complete object between the tags.") from error
    rest = text[end:].lstrip()
    if OPEN in rest:
        raise ActionError("The answer holds several tool calls; give one a turn.")
    if rest and not rest.startswith(CLOSE):
        raise ActionError(f"The tool call goes on after its JSON object; close it with {CLOSE}.")
    return call, rest
