"""The `pyautogui` action space: Python calls on absolute pixels, read against a whitelist and never run.

    <thinking>button Save 13</thinking>
    Action: click Save
    <answer>pyautogui.click(112, 80)</answer>

Several calls are fine where they amount to one action.
"""

import dataclasses
import re
from typing import Any

from flywheel.actions import legacy
from flywheel.actions.base import Parsed
from flywheel.actions.envelope import escape_markup, split_thinking, wrap
from flywheel.actions.pyautogui_script import read_script, write_script
from flywheel.errors import ActionError
from flywheel.types import Action, Size

OPEN, CLOSE = "<answer>", "</answer>"

_ANSWER = re.compile(rf"{OPEN}(.*?){CLOSE}", re.DOTALL)


class PyAutoGUI:
    """Coordinates are screen pixels; `stop` is part of the text. Other formats are read as fallbacks (`legacy.py`)."""

    name = "pyautogui"
    version = 1
    stop: str | None = CLOSE

    @property
    def id(self) -> str:
        return f"{self.name}/{self.version}"

    def system_prompt(self) -> str:
        return (
            "You operate a computer. Look at the screenshot, say in one line `Action: ...` what you do next, then "
            f"write one pyautogui action between {OPEN} and {CLOSE}, with coordinates in pixels of the screenshot, for "
            f"example {OPEN}pyautogui.click(10, 20){CLOSE}. Write time.sleep(seconds) to wait. When the task is "
            f"done, write {OPEN}DONE{CLOSE}; when it cannot be done, {OPEN}FAIL{CLOSE}."
        )

    def tools(self) -> list[dict[str, Any]]:
        return []

    def parse(self, text: str, screen: Size) -> Parsed:
        thinking, rest = split_thinking(text)
        scripts = _ANSWER.findall(rest)
        if len(scripts) == 1 and rest.count(OPEN) == 1:
            parsed = _parse_script(scripts[0], screen)
        else:
            parsed = legacy.read(rest, screen) or Parsed(
                None, f"There is no action in the answer; give one between {OPEN} and {CLOSE}."
            )
        return dataclasses.replace(parsed, thinking=thinking)

    def format(self, action: Action, screen: Size, *, thinking: str | None = None, brief: str | None = None) -> str:
        script = escape_markup(write_script(action, screen), "\\x3c")
        return wrap(f"{OPEN}{script}{CLOSE}", thinking, brief)


def _parse_script(script: str, screen: Size) -> Parsed:
    try:
        return Parsed(read_script(script, screen), format="answer")
    except ActionError as error:
        return Parsed(None, str(error), format="answer")
