"""The `sendkey` action space: keyboard only, for guests that are driven through a virtual machine's monitor.

    <thinking>dialog Run 3</thinking>
    Action: open the Run dialog
    <action>sendkey meta_l-r</action>

Verbs and key names are those of `sendkey_verbs.py`.
"""

import re

from flywheel.actions.marked import Marked
from flywheel.actions.sendkey_verbs import read_verb, write_verb
from flywheel.types import Action, Done, Size

OPEN, CLOSE = "<action>", "</action>"


class SendKey(Marked):
    """No pointer, so no coordinates."""

    name = "sendkey"
    version = 1
    stop: str | None = CLOSE
    opens = OPEN
    answers = re.compile(rf"{OPEN}(.*?){CLOSE}|<(done|fail)/>", re.DOTALL)
    format_name = "action"

    def system_prompt(self) -> str:
        return (
            "You operate a computer by keyboard. Look at the screen, then answer with one action: "
            f"{OPEN}sendkey ctrl-alt-delete{CLOSE} presses keys together (QEMU names, such as ret, esc, tab, meta_l), "
            f"{OPEN}type TEXT{CLOSE} types, {OPEN}typeline TEXT{CLOSE} types and presses Enter, {OPEN}wait 2{CLOSE} "
            "waits. When the task is done, answer <done/>; when it cannot be done, <fail/>."
        )

    def read(self, answer: str, screen: Size) -> Action:
        return read_verb(answer, screen)

    def write(self, action: Action, screen: Size) -> str:
        verb = write_verb(action, screen)
        return f"<{verb}/>" if isinstance(action, Done) else f"{OPEN}{verb}{CLOSE}"
