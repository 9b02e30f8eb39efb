"""Hostile agents on real sandboxed desktops, as the user that runs the tests (root in CI)."""

from collections.abc import Iterator

import pytest

from tests.envs.server.machines.attacks import ATTACKS, Attack, attempt
from tests.envs.server.machines.desks import Desk, booted, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Desk]]:
    run_root = tmp_path_factory.mktemp("run")
    with booted(run_root) as desk, booted(run_root) as neighbour:
        yield desk, neighbour


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_contained(attack: Attack, pair: tuple[Desk, Desk]) -> None:
    attempt(attack, *pair)


def test_a_frozen_desktop_is_noticed(pair: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    desk, _ = pair
    monkeypatch.setattr("flywheel.envs.server.machines.xvfb.machine.HEALTH_SECONDS", 0.5)
    desk.run("(sleep 0.2; kill -STOP -1) >/dev/null 2>&1 &")
    while (said := desk.health()) is None:
        pass
    assert "did not answer within" in said or "does not answer" in said
    desk.revert()
    assert desk.health() is None
