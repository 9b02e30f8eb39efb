"""Fixtures that several rooms share."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tiny import Tiny


DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture(autouse=True)
def shared_weights_are_given_back() -> Iterator[None]:
    """Weights shared with rollout workers hold a descriptor a tensor, and a learning rate schedule's cycle holds them.

    A job ends with its process; a process that runs hundreds of jobs would run out of descriptors.
    """
    yield
    if DESCRIPTORS.is_dir() and len(list(DESCRIPTORS.iterdir())) > 300:
        gc.collect()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> "Tiny":
    """A tiny policy with random weights; imported here, because torch takes seconds that most rooms need not wait."""
    from tests.tiny import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))
