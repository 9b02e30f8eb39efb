"""Fixtures of the heavy jobs."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.school import School
    from tests.tiny import Tiny


@pytest.fixture(scope="session")
def school(tiny: "Tiny", tmp_path_factory: pytest.TempPathFactory) -> "School":
    """A policy that solves about a third of the easiest tasks, and what it was taught with."""
    from tests.school import make_school

    return make_school(tiny, tmp_path_factory.mktemp("school"))
