"""Workers that die, hang, cannot start; all of them real processes, without HTTP in between."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.envs.base import ObserveOptions
from flywheel.envs.server.backends import BACKENDS, Backend, Deadlines
from flywheel.envs.server.desktop import WorkerSpec
from flywheel.envs.server.leases import Lease, Refusal
from flywheel.envs.server.supervisor import Supervisor
from flywheel.errors import InfrastructureError
from flywheel.processes import is_alive
from flywheel.types import Wait
from tests.envs.server.serving import tasks, wait_dead

SHORT = Deadlines(start=60, reset=20, step=3, observe=20, evaluate=20, recycle=20, health=20, close=5)


def supervised(
    root: Path, play: Callable[[Supervisor], Awaitable[None]], desktops: int = 1, backend: Backend | None = None
) -> list[str]:
    """Play with a supervisor; afterwards none of its workers lives. What it reported."""
    told: list[str] = []
    seen: set[int] = set()

    async def run() -> None:
        spec = WorkerSpec(replace(backend or BACKENDS["simulated"], deadlines=SHORT), Path(sys.executable))
        supervisor = Supervisor(spec, desktops, root, "simulated", told.append)
        supervisor.open()
        try:
            await play(supervisor)
        finally:
            seen.update(desktop.pid for desktop in supervisor.desktops if desktop.pid is not None)
            await supervisor.close()

    asyncio.run(run())
    assert not [pid for pid in seen if is_alive(pid)]
    assert not list((root / "run").iterdir()), "its folder is gone too"
    return told


async def lease_of(supervisor: Supervisor, wait: float = 60.0) -> Lease:
    return await supervisor.lease(client="test", ttl=60, wait=wait)


async def begun(supervisor: Supervisor) -> Lease:
    lease = await lease_of(supervisor)
    await lease.reset(tasks()[0], ObserveOptions())
    return lease


@pytest.mark.parametrize("at", ["idle in an episode", "in a step"])
def test_a_worker_killed_in_mid_episode_is_an_infrastructure_failure_and_is_replaced(tmp_path: Path, at: str) -> None:
    async def play(supervisor: Supervisor) -> None:
        lease = await begun(supervisor)
        pid = lease.desktop.pid
        assert pid is not None
        if at == "in a step":
            os.kill(pid, signal.SIGSTOP)  # so that it dies while the step is on its way
            step = asyncio.ensure_future(lease.step(0, Wait(0.0), None))
            await asyncio.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(InfrastructureError, match="died of signal 9"):
                await step
        else:
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait_for(lease.ended.wait(), 20)
        with pytest.raises(Refusal, match="died of signal 9") as refusal:
            await lease.step(0, Wait(0.0), None)
        assert (refusal.value.status, refusal.value.kind) == (410, "infrastructure")
        again = await begun(supervisor)
        assert again.desktop.pid != pid
        await again.step(0, Wait(0.0), None)

    (told,) = supervised(tmp_path, play)
    assert told == "Desktop 0 was lost: The worker of desktop 0 died of signal 9."


def test_a_worker_that_hangs_is_killed_and_replaced(tmp_path: Path) -> None:
    async def play(supervisor: Supervisor) -> None:
        lease = await begun(supervisor)
        pid = lease.desktop.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(InfrastructureError, match="did not step within 3 seconds"):
            await lease.step(0, Wait(0.0), None)
        assert time.monotonic() - started < 20
        again = await begun(supervisor)
        assert not is_alive(pid)
        assert again.desktop.pid != pid

    assert len(supervised(tmp_path, play)) == 1


def test_a_free_worker_that_dies_is_replaced_before_anyone_gets_it(tmp_path: Path) -> None:
    async def play(supervisor: Supervisor) -> None:
        await supervisor.capabilities()
        for _ in range(3):
            (await lease_of(supervisor)).end("only to see that there is one")
            while supervisor.desktops[0].state != "free":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            pid = supervisor.desktops[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while supervisor.desktops[0].alive:
                time.sleep(0.01)  # noqa: ASYNC251  the loop gets no turn to notice by itself
            lease = await begun(supervisor)
            assert lease.desktop.pid != pid
            lease.end("done")

    supervised(tmp_path, play)


def test_a_desktop_released_in_the_middle_of_a_command_is_not_handed_on_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.envs.server.supervisor.RELEASE_SECONDS", 0.2)

    async def play(supervisor: Supervisor) -> None:
        lease = await begun(supervisor)
        pid = lease.desktop.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        step = asyncio.ensure_future(lease.step(0, Wait(0.0), None))
        await asyncio.sleep(0.05)
        lease.end("released")
        with pytest.raises(InfrastructureError):
            await step
        assert (await begun(supervisor)).desktop.pid != pid

    supervised(tmp_path, play)


def test_workers_that_cannot_start_are_tried_again_ever_less_often_and_say_why(tmp_path: Path) -> None:
    async def play(supervisor: Supervisor) -> None:
        while supervisor.desktops[0].starts < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        with pytest.raises(InfrastructureError, match=r"No desktop of this server has started yet: .*No display"):
            await supervisor.capabilities(wait=0.1)
        while supervisor.desktops[0].state != "broken":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        with pytest.raises(Refusal, match=r"No desktop is alive: .*No display") as refusal:
            await lease_of(supervisor, wait=0.0)
        assert refusal.value.status == 503

    told = supervised(tmp_path, play, backend=Backend("tests.envs.server.test_supervisor:Dark"))
    assert all("No display" in each for each in told)
    assert len(told) >= 2


def Dark(machine: str, options: dict[str, str]) -> object:
    """An episode that cannot be made, runs in the worker."""
    raise InfrastructureError("No display.")


def test_workers_that_can_never_start_are_not_tried_again(tmp_path: Path) -> None:
    async def play(supervisor: Supervisor) -> None:
        unfit = await asyncio.wait_for(supervisor.unfit, 60)
        assert "No module named 'no_such_module'" in str(unfit)
        await asyncio.sleep(0.5)
        assert [desktop.starts for desktop in supervisor.desktops] == [1, 1]

    assert not supervised(tmp_path, play, 2, Backend("no_such_module:Episode"))


def test_what_a_worker_started_dies_with_it(tmp_path: Path) -> None:
    """Also when the worker was killed and could not end it, and when it lives in a session of its own."""

    async def play(supervisor: Supervisor) -> None:
        lease = await lease_of(supervisor)
        await lease.reset(tasks()[0], ObserveOptions())
        child = int((tmp_path / "child").read_text())
        assert is_alive(child)
        lease.end("done")
        os.kill(lease.desktop.pid or 0, signal.SIGKILL)
        await asyncio.to_thread(wait_dead, child)

    supervised(tmp_path, play, backend=Backend("tests.envs.server.test_supervisor:Parent"))


def Parent(machine: str, options: dict[str, str]) -> object:
    """An episode whose start leaves a process behind, runs in the worker."""
    import subprocess

    from flywheel.envs.server.episodes.simulated import SimulatedEpisode

    child = subprocess.Popen(["sleep", "600"])
    (Path(options["folder"]).parents[2] / "child").write_text(str(child.pid))
    return SimulatedEpisode(machine, options)


def test_a_grant_that_never_reached_its_client_is_soon_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.envs.server.leases.FIRST_SECONDS", 0.5)

    async def play(supervisor: Supervisor) -> None:
        lost = await lease_of(supervisor)
        kept = await begun(supervisor)
        assert lost.over == "The lease expired: its client never showed up."
        await asyncio.sleep(1.0)
        await kept.step(0, Wait(0.0), None)

    supervised(tmp_path, play)


def test_draining_lets_leases_end_and_refuses_others(tmp_path: Path) -> None:
    async def play(supervisor: Supervisor) -> None:
        lease = await begun(supervisor)
        waiting = asyncio.ensure_future(lease_of(supervisor))
        await asyncio.sleep(0.05)
        drain = asyncio.ensure_future(supervisor.drain(30))
        with pytest.raises(Refusal, match="draining"):
            await waiting
        with pytest.raises(Refusal, match="draining"):
            await lease_of(supervisor)
        await lease.step(0, Wait(0.0), None)
        assert not drain.done()
        lease.end("done")
        await asyncio.wait_for(drain, 20)
        other = time.monotonic()
        await supervisor.drain(0.2)
        assert time.monotonic() - other < 10

    supervised(tmp_path, play)
