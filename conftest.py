"""Options that every invocation of pytest knows."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=None,
        help="folder of golden figures for tests/trainers/test_golden.py; default: ../shared/golden, else tests/golden",
    )
