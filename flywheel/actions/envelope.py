"""What surrounds the action in a completion: a thinking block and a line that says in words what is done.

    <thinking>...</thinking>
    Action: click Save
    ...the action itself...

Both are optional.
"""

import re

from flywheel.errors import ActionError

_THINKING = re.compile(r"\s*<(thinking|think)>(.*?)</\1>\s*", re.DOTALL)
_MARKUP = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|answer|action))")
"""A `<` that opens what the chat template, the tokenizer or a parser would take for markup."""


def split_thinking(text: str) -> tuple[str | None, str]:
    """The thinking at the start of a completion, None when there is none, and everything after it."""
    found = _THINKING.match(text)
    return (found.group(2), text[found.end() :]) if found else (None, text)


def wrap(body: str, thinking: str | None, brief: str | None) -> str:
    """A completion; raises `ActionError` when thinking or brief would be taken for markup."""
    for name, words in (("thinking", thinking), ("brief", brief)):
        if words is not None and _MARKUP.search(words):
            raise ActionError(f"The {name} holds a tag such as <tool_call> or <|...|>, read as markup; leave it out.")
    if brief is not None and brief.splitlines() not in ([], [brief]):
        raise ActionError("The brief must be a single line; put longer text into the thinking.")
    head = "" if thinking is None else f"<thinking>{thinking}</thinking>\n"
    return head + ("" if brief is None else f"Action: {brief}\n") + body


def escape_markup(literal: str, less_than: str) -> str:
    """`literal`, a JSON or Python string literal, with each `<` of a tag written as the escape `less_than`.

    Text typed by an agent may hold the stop string or a special token; escaped, it neither ends the completion nor
    becomes a control token.
    """
    return _MARKUP.sub(lambda _: less_than, literal)


def holds_markup(text: str) -> bool:
    """Whether text written without escapes would be taken for markup."""
    return _MARKUP.search(text) is not None
