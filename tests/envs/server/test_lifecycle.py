"""The server as a process: it drains, it is killed, it cleans up after one that was killed."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flywheel.actions.computer_use import ComputerUse
from flywheel.envs.base import Env
from flywheel.envs.client import RemoteEnv
from flywheel.envs.pool import EnvPool
from flywheel.envs.server.folders import RunFolder, reap_leftovers
from flywheel.processes import is_alive
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import play
from flywheel.types import Done, Sampling, Trajectory, Wait
from tests.envs.server.serving import Native, Served, error_of, serving, tasks, wait_dead
from tests.rollout.faults import Parrot


def test_sigterm_lets_a_live_lease_end_and_refuses_new_ones(tmp_path: Path) -> None:
    (task,) = tasks()
    with serving(tmp_path, "-n", "2") as served:
        native, workers = Native(served.url), served.workers()
        lease = native.lease()
        lease.reset(task)
        served.process.send_signal(signal.SIGTERM)
        served.wait_for(status="draining")
        refused = native.http.post("/v1/leases", json={})
        assert error_of(refused)[:2] == (503, "infrastructure")
        assert lease.step(0, Wait(0.0)).status_code == 200
        assert lease.post("evaluate").json() == {"reward": 0.0}
        lease.release()
        assert served.process.wait(30) == 0
        wait_dead(*workers)
        assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("how", ["the limit", "a second SIGTERM", "SIGINT"])
def test_a_drain_ends_with_a_live_lease_too(tmp_path: Path, how: str) -> None:
    limit = "1" if how == "the limit" else "600"
    with serving(tmp_path, "-n", "1", "--drain", limit) as served:
        Native(served.url).lease().reset(tasks()[0])
        workers = served.workers()
        if how != "SIGINT":
            served.process.send_signal(signal.SIGTERM)
            served.wait_for(status="draining")
        if how == "the limit":
            assert served.process.wait(30) == 0
        else:
            assert served.stop(signal.SIGINT if how == "SIGINT" else signal.SIGTERM) == 0
        wait_dead(*workers)


def test_workers_die_with_a_killed_server_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    with serving(tmp_path, "-n", "2") as first:
        workers = first.workers()
        Native(first.url).lease().reset(tasks()[0])
        first.stop(signal.SIGKILL)
        wait_dead(*workers)
    (left,) = (tmp_path / "run").iterdir()
    with serving(tmp_path, "-n", "1") as second:
        assert f"Cleaned up after the killed server {left.name}." in second.said
        assert [folder.name.split("-")[0] for folder in (tmp_path / "run").iterdir()] == [str(second.process.pid)]


def test_folders_of_live_servers_and_of_others_are_left_alone(tmp_path: Path) -> None:
    mine = RunFolder(tmp_path, "simulated")
    (tmp_path / "run" / "desktops").mkdir()
    (tmp_path / "run" / "1-00000000").mkdir()
    assert reap_leftovers(tmp_path) == ["1-00000000"]
    assert {folder.name for folder in (tmp_path / "run").iterdir()} == {mine.path.name, "desktops"}
    mine.close()
    assert reap_leftovers(tmp_path) == []


# --- trajectories of clients whose server is killed -------------------------------------------------------------------


class _KillsItsServer:
    """An environment whose server is killed before its `at`th step."""

    def __init__(self, env: RemoteEnv, at: int, kill: Callable[[], None]) -> None:
        self._env, self._left, self._kill = env, at, kill

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    async def step(self, action: object) -> object:
        self._left -= 1
        if self._left < 0:
            self._kill()
        return await self._env.step(action)  # type: ignore[arg-type]


def play_while_killed(root: Path, seed: int) -> None:
    """Four episodes, the server killed in one of them: each is judged or an infrastructure failure; no orphan."""
    rng = random.Random(seed)
    at = rng.randrange(6)
    found: list[Trajectory] = []
    with serving(root, "-n", "2") as served:
        workers = served.workers()

        def kill() -> None:
            if is_alive(served.process.pid):
                time.sleep(rng.random() * 0.05)
                os.kill(served.process.pid, signal.SIGKILL)

        async def run() -> None:
            async with EnvPool(served.url, wait=20) as pool:
                space = ComputerUse()

                def make() -> Env:
                    return _KillsItsServer(pool.env(), at, kill)  # type: ignore[return-value]

                specs = [EpisodeSpec(f"e{n}", task, Sampling(), 4) for n, task in enumerate(tasks(4))]
                agent = Parrot(space, [Wait(0.0), Wait(0.0), Done()])
                await play(specs, agent, space, make, concurrency=2, on_trajectory=found.append)

        asyncio.run(asyncio.wait_for(run(), 120))
        wait_dead(*workers)
    assert len(found) == 4
    for trajectory in found:
        judged = trajectory.failure is None
        assert judged == (trajectory.task_reward is not None), "a failure has no reward"
        assert judged or (trajectory.failure, trajectory.outcome) == ("infrastructure", "failed")
    assert any(trajectory.failure for trajectory in found)


def test_a_killed_server_leaves_infrastructure_failures_and_no_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.envs.client.RETRY_SECONDS", 0.5)
    monkeypatch.setattr("flywheel.envs.pool.UNREACHABLE_SECONDS", 1.0)
    for seed in range(2):
        play_while_killed(tmp_path / str(seed), seed)


@pytest.mark.desktop
def test_fifty_killed_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flywheel.envs.client.RETRY_SECONDS", 0.5)
    monkeypatch.setattr("flywheel.envs.pool.UNREACHABLE_SECONDS", 1.0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda seed: play_while_killed(tmp_path / str(seed), seed), range(50)))


def test_many_clients_at_once(served: Served) -> None:
    """Twelve episodes at a time over three desktops, all of them judged."""
    found: list[Trajectory] = []

    async def run() -> None:
        async with EnvPool(served.url) as pool:
            space = ComputerUse()
            specs = [EpisodeSpec(f"e{n}", task, Sampling(), 4) for n, task in enumerate(tasks(24))]
            agent = Parrot(space, [Wait(0.0), Done()])
            await play(specs, agent, space, pool.env, concurrency=12, on_trajectory=found.append)

    asyncio.run(run())
    assert sorted(trajectory.task_reward for trajectory in found) == [0.0] * 24  # type: ignore[type-var]
    served.wait_for(free=3, leases=0)
