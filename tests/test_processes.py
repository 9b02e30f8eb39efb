"""What only `flywheel.processes` does itself; families of processes are tested with the launcher."""

import os
import resource
from collections.abc import Iterator

import pytest

from flywheel.processes import readable

LIMIT = 2048


@pytest.fixture
def high_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe, as descriptors that `select.select` refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LIMIT:
        pytest.skip(f"this user may not open {LIMIT} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, LIMIT), hard))
    low = os.pipe()
    high = (LIMIT - 2, LIMIT - 1)
    for descriptor, wanted in zip(low, high, strict=True):
        os.dup2(descriptor, wanted)
        os.close(descriptor)
    yield high
    for descriptor in high:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_any_descriptor_can_be_waited_for(high_pipe: tuple[int, int]) -> None:
    read, write = high_pipe
    assert not readable(read, 0.01)
    os.write(write, b"x")
    assert readable(read, 0)
