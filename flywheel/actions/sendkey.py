"""The `sendkey` action space: keyboard only, for guests that are driven through a virtual machine's monitor.

    <thinking>dialog Run 3</thinking>
    Action: open the Run dialog
    <action>sendkey meta_l-r</action>

Verbs and key names are those of `sendkey_verbs.py`.
"""

import dataclasses
import re
from typing import Any

from flywheel.actions import legacy
from flywheel.actions.base import Parsed
from flywheel.actions.envelope import split_thinking, wrap
from flywheel.actions.sendkey_verbs import read_verb, write_verb
from flywheel.errors import ActionError
from flywheel.types import Action, Done, Size

OPEN, CLOSE = "<action>", "</action>"

_ACTION = re.compile(rf"{OPEN}(.*?){CLOSE}|<(done|fail)/>", re.DOTALL)


class SendKey:
    """No pointer, so no coordinates; `stop` is part of the text. Other formats are read as fallbacks (`legacy.py`)."""

    name = "sendkey"
    version = 1
    stop: str | None = CLOSE

    @property
    def id(self) -> str:
        return f"{self.name}/{self.version}"

    def system_prompt(self) -> str:
        return (
            "You operate a computer by keyboard. Look at the screen, then answer with one action: "
            f"{OPEN}sendkey ctrl-alt-delete{CLOSE} presses keys together (QEMU names, such as ret, esc, tab, meta_l), "
            f"{OPEN}type TEXT{CLOSE} types, {OPEN}typeline TEXT{CLOSE} types and presses Enter, {OPEN}wait 2{CLOSE} "
            "waits. When the task is done, answer <done/>; when it cannot be done, <fail/>."
        )

    def tools(self) -> list[dict[str, Any]]:
        return []

    def parse(self, text: str, screen: Size) -> Parsed:
        thinking, rest = split_thinking(text)
        found = list(_ACTION.finditer(rest))
        if len(found) == 1 and rest.count(OPEN) <= 1:
            parsed = _parse_verb(found[0].group(2) or found[0].group(1), screen)
        else:
            parsed = legacy.read(rest, screen) or Parsed(
                None, f"There is no action in the answer; give one between {OPEN} and {CLOSE}."
            )
        return dataclasses.replace(parsed, thinking=thinking)

    def format(self, action: Action, screen: Size, *, thinking: str | None = None, brief: str | None = None) -> str:
        verb = write_verb(action, screen)
        return wrap(f"<{verb}/>" if isinstance(action, Done) else f"{OPEN}{verb}{CLOSE}", thinking, brief)


def _parse_verb(text: str, screen: Size) -> Parsed:
    try:
        return Parsed(read_verb(text, screen), format="action")
    except ActionError as error:
        return Parsed(None, str(error), format="action")
