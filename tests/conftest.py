"""Fixtures that several rooms share."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tiny import Tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> "Tiny":
    """A tiny policy with random weights; imported here, because torch takes seconds that most rooms need not wait."""
    from tests.tiny import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))
