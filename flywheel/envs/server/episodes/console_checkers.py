"""Checkers of tasks that end in a text file: what a console episode is judged by.

    {"func": "exact_match", "result": {"type": "guest_file", "path": "C:\\\\output.txt"}, "expected": {"text": "hello"}}

    func                expected               the file is right when
    exact_match         text                   it is this text, but for spaces and line breaks at its end
    date_format         format (strptime)      it is one date written exactly so
    directory_listing   names                  each is an entry of the listing, in any layout that dir or ls prints
    non_empty                                  there is more than white space in it
    two_steps           first, second          both are lines of it, in this order
    infeasible                                 (no file) the agent said that the task cannot be done

All are right or wrong: half of two steps is no success, and half a point would count as one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flywheel.errors import SetupError


@dataclass(frozen=True, slots=True)
class Check:
    """`path` is None for the infeasible task."""

    path: str | None
    holds: Callable[[str], bool]


def read_check(evaluator: Mapping[str, Any]) -> Check:
    """Raises `SetupError` on an evaluator that is not of this kind."""
    name = evaluator.get("func")
    if name == "infeasible":
        return Check(None, lambda _text: False)
    if not isinstance(name, str) or name not in _CHECKERS:
        raise SetupError(f"A console task cannot be judged by {name!r}; its func is one of {', '.join(_CHECKERS)}.")
    result, expected = evaluator.get("result") or {}, evaluator.get("expected") or {}
    path = result.get("path")
    if result.get("type") != "guest_file" or not isinstance(path, str) or not path:
        raise SetupError("The result of a console task's evaluator is {type: guest_file, path: FILE}.")
    checker, needs = _CHECKERS[name]
    if missing := [key for key in needs if key not in expected]:
        raise SetupError(f"{name} needs expected.{missing[0]} in the task's evaluator.")
    return Check(path, lambda text: checker(text, expected))


def decode(data: bytes) -> str:
    """Text as Windows and Linux write it: PowerShell's redirection is UTF-16 with a byte order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def _exact_match(text: str, expected: Mapping[str, Any]) -> bool:
    return text.replace("\r\n", "\n").rstrip() == str(expected["text"]).rstrip()


def _date_format(text: str, expected: Mapping[str, Any]) -> bool:
    """Read and written again, because strptime takes 2026-1-5 for 2026-01-05."""
    layout, stripped = str(expected["format"]), text.strip()
    try:
        return datetime.strptime(stripped, layout).strftime(layout) == stripped
    except ValueError:
        return False


def _directory_listing(text: str, expected: Mapping[str, Any]) -> bool:
    """A name stands alone at a line's end or between spaces; `Users` is not found in `Users2`."""
    return all(
        re.search(rf"(^|\s){re.escape(str(name))}[/\\]?(\s|$)", text, re.MULTILINE) for name in expected["names"]
    )


def _non_empty(text: str, _expected: Mapping[str, Any]) -> bool:
    return bool(text.strip())


def _two_steps(text: str, expected: Mapping[str, Any]) -> bool:
    lines = [line.strip() for line in text.splitlines()]
    first, second = str(expected["first"]), str(expected["second"])
    return first in lines and second in lines[lines.index(first) + 1 :]


_CHECKERS: dict[str, tuple[Callable[[str, Mapping[str, Any]], bool], tuple[str, ...]]] = {
    "exact_match": (_exact_match, ("text",)),
    "date_format": (_date_format, ("format",)),
    "directory_listing": (_directory_listing, ("names",)),
    "non_empty": (_non_empty, ()),
    "two_steps": (_two_steps, ("first", "second")),
}
