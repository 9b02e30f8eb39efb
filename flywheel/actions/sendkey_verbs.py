"""The verbs of the `sendkey` space <-> `Action`: what a virtual machine's monitor can do without a mouse.

    sendkey ctrl-alt-delete     type TEXT     typeline TEXT     wait SECONDS     done     fail

Keys have QEMU's names, joined by "-". `typeline` types TEXT and presses Enter, so it is a `Type` whose text ends with a
line break; text with line breaks elsewhere cannot be said in one action.
"""

import re

from flywheel.actions.base import quote
from flywheel.actions.checks import checked
from flywheel.actions.envelope import holds_markup
from flywheel.actions.keys import QEMU_NAMES, chord
from flywheel.errors import ActionError
from flywheel.types import Action, Done, Key, Size, Type, Wait

VERBS = ("sendkey", "type", "typeline", "wait", "done", "fail")

_VERB = re.compile(rf"\s*({'|'.join(VERBS)})\b(?:\s(.*))?", re.DOTALL | re.IGNORECASE)


def starts_with_verb(text: str) -> bool:
    return _VERB.fullmatch(text) is not None


def read_verb(text: str, screen: Size) -> Action:
    """The action of one verb with its arguments; raises `ActionError`."""
    found = _VERB.fullmatch(text)
    if found is None:
        raise ActionError(f"There is no verb in {quote(text.strip())}; use one of {', '.join(VERBS)}.")
    verb, rest = found.group(1).lower(), found.group(2) or ""
    return checked(_read(verb, rest), screen)


def _read(verb: str, rest: str) -> Action:
    line = rest.rstrip("\r\n")  # tags are often put on lines of their own
    words = rest.split()
    match verb:
        case "sendkey" if len(words) == 1:
            return Key(chord(words[0].split("-")))
        case "sendkey":
            raise ActionError("sendkey needs one chord; write for example sendkey ctrl-s.")
        case "type" if line:
            return Type(line)
        case "type":
            raise ActionError("type needs its text; write for example type hello.")
        case "typeline":
            return Type(line + "\n")
        case "wait" if len(words) <= 1:
            return Wait(_seconds(words[0])) if words else Wait()
    if words:
        raise ActionError(f"{verb} does not take {quote(' '.join(words))}; leave it out.")
    return Done("success" if verb == "done" else "failure")


def _seconds(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise ActionError(f"wait needs a number of seconds, not {quote(word)}.") from error


def write_verb(action: Action, screen: Size) -> str:
    """Text that `read_verb` reads as `action`; raises `ActionError` for what cannot be said."""
    match checked(action, screen):
        case Key(keys) if all(_sayable(key) for key in keys):
            return "sendkey " + "-".join(QEMU_NAMES.get(key, key) for key in keys)
        case Type(text) if text and not holds_markup(text) and not re.search(r"[\r\n](?!\Z)|\r\Z", text):
            return f"typeline {text[:-1]}" if text.endswith("\n") else f"type {text}"
        case Wait(seconds):
            return f"wait {seconds}"
        case Done(status):
            return "done" if status == "success" else "fail"
    raise ActionError(f"sendkey cannot say {repr(action)[:80]}; it has keys, lines of plain text, waits and an end.")


def _sayable(key: str) -> bool:
    """Single characters that QEMU has a key for: a capital or a `!` needs shift, which the chord then names."""
    return len(key) > 1 or key in QEMU_NAMES or (key.isascii() and (key.islower() or key.isdigit()))
