"""Somebody's running guest: looked at, never started or stopped."""

import pytest

from flywheel.envs.server.machines.base import Endpoints
from flywheel.envs.server.machines.remote import RemoteMachine
from flywheel.errors import InfrastructureError
from tests.envs.server.episodes.working import scripted_guest


def test_a_guest_that_answers_is_a_machine() -> None:
    with scripted_guest() as guest:
        machine = RemoteMachine({"server": guest.port, "chromium": 9333})
        machine.start()
        assert machine.endpoints() == Endpoints("127.0.0.1", guest.port, 9333, 5900, 8080)
        machine.revert()
        machine.stop()
        assert machine.health() is None
        guest.answers["/platform"] = (500, "text/plain", b"")
        assert machine.health() == f"127.0.0.1:{guest.port} is no OSWorld guest (status 500)."
    assert "No OSWorld guest answers" in str(machine.health())
    with pytest.raises(InfrastructureError, match="No OSWorld guest answers at"):
        machine.start()
