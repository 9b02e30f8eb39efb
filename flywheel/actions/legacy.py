"""Readers of every older format that people have data or models for.

    format       looks like
    answer       <answer>pyautogui.click(10, 20)</answer>
    action       <action>sendkey ctrl-s</action>, <action>pyautogui.click(10, 20)</action>, <done/>, <fail/>
    python       a fenced block of pyautogui calls
    pyautogui    bare calls on lines of their own, also after "Action:"
    word         DONE, FAIL or WAIT on the last line

Each reader is a pure function from a completion to what it holds, without the tags around it. Coordinates in them are
screen pixels.
"""

import re
from collections.abc import Callable

from flywheel.actions.base import Parsed
from flywheel.actions.pyautogui_script import WORDS, read_script
from flywheel.actions.sendkey_verbs import read_verb, starts_with_verb
from flywheel.errors import ActionError
from flywheel.types import Action, Size

_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
_ACTION = re.compile(r"<action>(.*?)(?:</action>|\Z)|<(done|fail)\s*/>", re.DOTALL)
_FENCE = re.compile(r"```(?:python\b|py\b)?(.*?)(?:```|\Z)", re.DOTALL)
_BARE = re.compile(r"^[ \t]*(?:Action:[ \t]*)?((?:pyautogui|time)\.\w+\(.*)$", re.MULTILINE)
_WORD = re.compile(rf"^[ \t]*(?:Action:[ \t]*)?({'|'.join(WORDS)})\s*\Z", re.MULTILINE)


def answer_contents(text: str) -> list[str]:
    """What stands between <answer> tags."""
    return [found.group(1) for found in _ANSWER.finditer(text)]


def action_contents(text: str) -> list[str]:
    """What stands between <action> tags, and the names of <done/> and <fail/>."""
    return [found.group(2) or found.group(1) for found in _ACTION.finditer(text)]


def fence_contents(text: str) -> list[str]:
    """What stands in fenced blocks."""
    return [found.group(1) for found in _FENCE.finditer(text)]


def bare_calls(text: str) -> list[str]:
    """All bare calls as one script."""
    calls = [found.group(1) for found in _BARE.finditer(text)]
    return ["\n".join(calls)] if calls else []


def last_word(text: str) -> list[str]:
    """DONE, FAIL or WAIT where nothing else stands on the last line."""
    return [found.group(1) for found in _WORD.finditer(text)]


READERS: dict[str, Callable[[str], list[str]]] = {
    "answer": answer_contents,
    "action": action_contents,
    "python": fence_contents,
    "pyautogui": bare_calls,
    "word": last_word,
}


def read(text: str, screen: Size) -> Parsed | None:
    """The first of the formats above that `text` is in, as a fallback; None when it is in none of them."""
    for name, reader in READERS.items():
        if contents := reader(text):
            try:
                return Parsed(_only_action(contents, screen), fallback=True, format=name)
            except ActionError as error:
                return Parsed(None, str(error), fallback=True, format=name)
    return None


def _only_action(contents: list[str], screen: Size) -> Action:
    if len(contents) > 1:
        raise ActionError(f"The answer holds {len(contents)} actions; give one a turn.")
    content = contents[0]
    if content.strip() not in WORDS and starts_with_verb(content):
        return read_verb(content, screen)
    return read_script(content, screen)
