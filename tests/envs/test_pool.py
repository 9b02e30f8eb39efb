"""Several servers as one: who gets which task, what a full, dead or foreign server does to the others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flywheel.envs import client
from flywheel.envs.base import Capabilities
from flywheel.envs.pool import EnvPool, needed_apps, why_not
from flywheel.errors import InfrastructureError, SetupError
from flywheel.types import Size, Task
from tests.envs.server.serving import Served, serving, solution, tasks
from tests.envs.test_client import http, lying_server

ELSEWHERE = {"screen": [1920, 1080], "platform": "ubuntu", "apps": ["chrome", "gimp"]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr("flywheel.envs.pool.UNREACHABLE_SECONDS", 1.0)


async def play_all(pool: EnvPool, count: int, concurrency: int = 4) -> list[float]:
    waiting = iter(tasks(count))

    async def player() -> list[float]:
        env = pool.env()
        rewards = []
        try:
            for task in waiting:
                await env.reset(task)
                for action in solution(task):
                    await env.step(action)
                rewards.append(await env.evaluate())
        finally:
            await env.close()
        return rewards

    return [reward for rewards in await asyncio.gather(*(player() for _ in range(concurrency))) for reward in rewards]


def test_two_servers_share_the_work(served: Served, tmp_path: Path) -> None:
    with serving(tmp_path, "-n", "1") as other:
        before = _episodes(served)

        async def run() -> list[float]:
            async with EnvPool(f"{served.url}, {other.url},{served.url}") as pool:
                assert len(pool.servers) == 2, "named twice, used once"
                return await play_all(pool, 12)

        assert asyncio.run(run()) == [1.0] * 12
        assert _episodes(other) > 0
        assert _episodes(served) - before > 0


def _episodes(served: Served) -> int:
    return sum(each["episodes"] for each in served.get("/v1/desktops"))


def test_a_dead_server_and_a_foreign_one_hold_nobody_up(served: Served) -> None:
    async def run() -> list[float]:
        async with (
            lying_server(lambda line: http(200, ELSEWHERE)) as foreign,
            EnvPool(f"http://127.0.0.1:9,{foreign},{served.url}") as pool,
        ):
            told = await pool.health()
            assert "does not answer" in str(told["http://127.0.0.1:9"])
            return await play_all(pool, 6)

    assert asyncio.run(run()) == [1.0] * 6


def test_a_full_server_sends_its_callers_to_the_next(served: Served) -> None:
    full = {"error": {"kind": "request", "message": "All 1 desktops are taken; try again later."}}

    def answer(line: str) -> bytes:
        own: dict[str, Any] = {"screen": [160, 128], "platform": "simulated"}
        return http(200, own) if "capabilities" in line else http(429, full)

    async def run() -> list[float]:
        async with lying_server(answer) as busy, EnvPool(f"{busy},{served.url}") as pool:
            return await play_all(pool, 4, concurrency=2)

    assert asyncio.run(run()) == [1.0] * 4


def test_a_task_that_no_server_can_play_is_refused_with_every_reason(served: Served) -> None:
    task = Task("t", "Do it", "gimp", platform="windows", raw={"related_apps": ["gimp"]})

    async def run() -> None:
        async with lying_server(lambda line: http(200, ELSEWHERE)) as other, EnvPool(f"{served.url},{other}") as pool:
            await pool.lease(task)

    with pytest.raises(SetupError, match=r"task t: .* platform 'simulated'.*; .* platform 'ubuntu', not 'windows'\.$"):
        asyncio.run(run())


def test_waiting_for_a_desktop_has_an_end(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        async with EnvPool(url, wait=1.0) as pool:
            env, other = pool.env(), pool.env()
            try:
                await env.reset(tasks()[0])
                with pytest.raises(InfrastructureError, match=r"No desktop for task .* became free within 1 seconds"):
                    await other.reset(tasks()[0])
            finally:
                await env.close()
            await other.reset(tasks()[0])
            await other.close()

    with serving(tmp_path, "-n", "1") as served:
        asyncio.run(run(served.url))


def test_routing_goes_by_platform_and_apps() -> None:
    offered = Capabilities(Size(1920, 1080), frozenset({"gimp", "chrome"}), "ubuntu")
    task = Task(
        "t", "Do it", "multi_apps", platform="ubuntu", raw={"related_apps": ["gimp", "os", "multi_apps", "vlc"]}
    )
    assert needed_apps(task) == {"gimp", "vlc"}
    assert why_not(task, needed_apps(task), offered) == "has no vlc"
    assert why_not(task, frozenset({"gimp"}), offered) is None
    assert needed_apps(Task("t", "Do it", "os", raw={"related_apps": "gimp"})) == frozenset()
