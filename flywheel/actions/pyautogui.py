"""The `pyautogui` action space: Python calls on absolute pixels, read against a whitelist and never run.

    <thinking>button Save 13</thinking>
    Action: click Save
    <answer>pyautogui.click(112, 80)</answer>

Several calls are fine where they amount to one action.
"""

import re

from flywheel.actions.envelope import escape_markup
from flywheel.actions.marked import Marked
from flywheel.actions.pyautogui_script import read_script, write_script
from flywheel.types import Action, Size

OPEN, CLOSE = "<answer>", "</answer>"


class PyAutoGUI(Marked):
    """Coordinates are screen pixels."""

    name = "pyautogui"
    version = 1
    stop: str | None = CLOSE
    opens = OPEN
    answers = re.compile(rf"{OPEN}(.*?){CLOSE}", re.DOTALL)
    format_name = "answer"

    def system_prompt(self) -> str:
        return (
            "You operate a computer. Look at the screenshot, say in one line `Action: ...` what you do next, then "
            f"write one pyautogui action between {OPEN} and {CLOSE}, with coordinates in pixels of the screenshot, for "
            f"example {OPEN}pyautogui.click(10, 20){CLOSE}. Write time.sleep(seconds) to wait. When the task is "
            f"done, write {OPEN}DONE{CLOSE}; when it cannot be done, {OPEN}FAIL{CLOSE}."
        )

    def read(self, answer: str, screen: Size) -> Action:
        return read_script(answer, screen)

    def write(self, action: Action, screen: Size) -> str:
        script = escape_markup(write_script(action, screen), "\\x3c")
        return f"{OPEN}{script}{CLOSE}"
