"""One env server for all tests that only use it."""

from collections.abc import Iterator

import pytest

from tests.envs.server.serving import Served, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three simulated desktops behind HTTP."""
    with serving(tmp_path_factory.mktemp("desktops"), "-n", "3", "--bridge-ttl", "30") as running:
        yield running
