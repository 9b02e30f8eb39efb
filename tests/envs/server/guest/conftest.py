"""One desktop a test session; tests take their windows away again."""

from collections.abc import Iterator

import pytest

from tests.envs.server.guest.desk import Desk, Witness, desktop, end, missing


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with desktop(tmp_path_factory.mktemp("desk") / "home") as running:
        yield running


@pytest.fixture
def witness(desk: Desk) -> Iterator[Witness]:
    window = Witness(desk)
    yield window
    end(window.process)
