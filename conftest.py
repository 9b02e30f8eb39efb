"""Options that every invocation of pytest knows."""

import atexit
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Examples are searched for at a desk and repeated in CI; a slow machine is no counterexample.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=None,
        help="folder of golden figures for tests/trainers/test_golden.py; default: ../shared/golden, else tests/golden",
    )


@atexit.register
def _end_with_the_summary() -> None:
    """DuckDB's binding counts what the interpreter leaves over at its end, behind pytest's summary.

    Some threads of Dagster and torch keep modules alive that long; there is nothing to mend in what is counted.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
