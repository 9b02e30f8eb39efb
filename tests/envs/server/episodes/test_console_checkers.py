"""The five checkers of text files, each with texts that are right and wrong."""

from typing import Any

import pytest

from flywheel.envs.server.episodes.console_checkers import decode, read_check
from flywheel.errors import SetupError

_FILE = {"type": "guest_file", "path": "C:\\output.txt"}
_DIR = " Directory of C:\\\r\n01/05/2026  <DIR>          Program Files\r\n01/05/2026  <DIR>          Users\r\n"


@pytest.mark.parametrize(
    ("name", "expected", "text", "right"),
    [
        ("exact_match", {"text": "hello"}, "hello", True),
        ("exact_match", {"text": "hello"}, "hello\r\n", True),
        ("exact_match", {"text": "hello"}, " hello", False),
        ("exact_match", {"text": "hello"}, "hello world", False),
        ("exact_match", {"text": "hello"}, "", False),
        ("exact_match", {"text": "a\nb"}, "a\r\nb\r\n", True),
        ("date_format", {"format": "%Y-%m-%d"}, "2026-01-05\r\n", True),
        ("date_format", {"format": "%Y-%m-%d"}, "2026-1-5", False),
        ("date_format", {"format": "%Y-%m-%d"}, "2026-13-05", False),
        ("date_format", {"format": "%Y-%m-%d"}, "05.01.2026", False),
        ("date_format", {"format": "%Y-%m-%d"}, "today is 2026-01-05", False),
        ("directory_listing", {"names": ["Users", "Program Files"]}, _DIR, True),
        ("directory_listing", {"names": ["Users", "Windows"]}, _DIR, False),
        ("directory_listing", {"names": ["bin", "etc"]}, "bin   etc   home\n", True),
        ("directory_listing", {"names": ["bin", "etc"]}, "bin/\netc/\n", True),
        ("directory_listing", {"names": ["bin"]}, "sbin binutils\n", False),
        ("non_empty", {}, "x", True),
        ("non_empty", {}, " \r\n\t", False),
        ("two_steps", {"first": "one", "second": "two"}, "one\r\ntwo\r\n", True),
        ("two_steps", {"first": "one", "second": "two"}, "one\nmore\ntwo\n", True),
        ("two_steps", {"first": "one", "second": "two"}, "two\none\n", False),
        ("two_steps", {"first": "one", "second": "two"}, "one\n", False),
        ("two_steps", {"first": "one", "second": "two"}, "onetwo\n", False),
    ],
)
def test_right_and_wrong_files(name: str, expected: dict[str, Any], text: str, right: bool) -> None:
    check = read_check({"func": name, "result": _FILE, "expected": expected})
    assert check.path == "C:\\output.txt"
    assert check.holds(text) is right


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_is_read_as_windows_and_linux_write_it(codec: str) -> None:
    assert decode("grün".encode(codec)) == "grün"
    decode(bytes(range(256)))  # rubbish is text that no checker accepts, not an exception


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        ({}, "its func is one of"),
        ({"func": "compare_table"}, "its func is one of"),
        ({"func": ["exact_match"]}, "its func is one of"),
        ({"func": "non_empty"}, "guest_file"),
        ({"func": "non_empty", "result": {"type": "vm_file", "path": "x"}}, "guest_file"),
        ({"func": "exact_match", "result": _FILE}, r"expected\.text"),
    ],
)
def test_other_evaluators_are_refused(evaluator: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        read_check(evaluator)


def test_an_infeasible_task_has_no_file() -> None:
    assert read_check({"func": "infeasible"}).path is None
