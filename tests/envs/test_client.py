"""A remote environment against servers that misbehave: cut connections, silence, lies."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from flywheel.envs import breaker as breakers
from flywheel.envs import client
from flywheel.envs.base import ObserveOptions
from flywheel.envs.breaker import Breaker
from flywheel.envs.client import RemoteEnv
from flywheel.envs.pool import EnvPool, remote_env
from flywheel.errors import ConfigError, InfrastructureError, SetupError
from flywheel.types import Task, Wait
from tests.envs.server.serving import Served, solution, tasks


@asynccontextmanager
async def cutting_proxy(url: str, cut: Callable[[bytes], bool]) -> AsyncIterator[str]:
    """Passes requests on, and cuts the connection instead of bringing the answer to those that `cut` picks."""
    where = urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(where.hostname, where.port)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                ours.write(head + await reader.readexactly(_length(head)))
                answer = await theirs.readuntil(b"\r\n\r\n")
                answer += await theirs.readexactly(_length(answer))
                if cut(head):
                    break
                writer.write(answer)
        for stream in (writer, ours):
            stream.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@asynccontextmanager
async def lying_server(answer: Callable[[str], bytes]) -> AsyncIterator[str]:
    """Answers every request with what `answer` says to its first line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_length(head))
                writer.write(answer(head.split(b"\r\n")[0].decode()))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def http(status: int, body: object, kind: str = "application/json") -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text


async def judged(env: RemoteEnv, task: Task) -> float:
    try:
        await env.reset(task)
        for action in solution(task):
            await env.step(action)
        return await env.evaluate()
    finally:
        await env.close()


@pytest.mark.parametrize("command", ["reset", "step", "evaluate", "capabilities"])
def test_a_cut_connection_is_mended_and_nothing_is_done_twice(served: Served, command: str) -> None:
    """Every first answer to the command is lost; an action executed twice would fail the task."""
    (task,) = tasks()
    cuts = []

    def cut(head: bytes) -> bool:
        wanted = f"/{command} ".encode() in head
        cuts.append(wanted)
        return wanted and sum(cuts) % 2 == 1

    async def episode() -> float:
        async with cutting_proxy(served.url, cut) as url:
            return await judged(remote_env(url), task)

    assert asyncio.run(episode()) == 1.0
    assert sum(cuts) >= 2
    served.wait_for(leases=0)


def test_a_server_that_is_gone_is_an_infrastructure_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr("flywheel.envs.pool.UNREACHABLE_SECONDS", 0.3)
    with pytest.raises(InfrastructureError, match=r"http://127.0.0.1:9 does not answer: .*\.$"):
        asyncio.run(judged(remote_env("http://127.0.0.1:9"), tasks()[0]))


GRANT = {
    "lease": "l",
    "secret": "s",
    "expires_in_s": 60.0,
    "desktop": 0,
    "capabilities": {"screen": [160, 128], "platform": "simulated"},
}


def _says(reset: bytes) -> Callable[[str], bytes]:
    def answer(line: str) -> bytes:
        if "capabilities" in line:
            return http(200, GRANT["capabilities"])
        return http(201, GRANT) if line.startswith("POST /v1/leases HTTP") else reset

    return answer


@pytest.mark.parametrize(
    "reset",
    [
        http(200, b"", "application/vnd.flywheel.frame"),
        http(200, b"\x00\x00\xff\xff{}", "application/vnd.flywheel.frame"),
        http(200, b"\x00\x00\x00\x02{}\x89PNG", "application/vnd.flywheel.frame"),
        http(200, {"screenshot": 5}),
        http(404, {"error": {"kind": "request", "message": "There is no such lease."}}),
        http(410, {"error": {"kind": "infrastructure", "message": "The worker died."}}),
        http(500, b"<html>", "text/html"),
    ],
)
def test_answers_that_make_no_sense_are_infrastructure_failures(reset: bytes) -> None:
    async def episode() -> None:
        async with lying_server(_says(reset)) as url:
            await judged(remote_env(url), tasks()[0])

    with pytest.raises(InfrastructureError):
        asyncio.run(episode())


def test_a_refused_token_stops_the_run() -> None:
    async def episode() -> None:
        async with lying_server(
            lambda _: http(401, {"error": {"kind": "request", "message": "This server wants its token."}})
        ) as url:
            await judged(remote_env(url), tasks()[0])

    with pytest.raises(ConfigError, match="refuses the token"):
        asyncio.run(episode())


@pytest.mark.parametrize("urls", ["", " , ", "127.0.0.1:8100", "ftp://a:1", "http://", "http://a:b:c"])
def test_what_is_no_url_is_refused_at_once(urls: str) -> None:
    with pytest.raises(ConfigError, match=r"\.$"):
        EnvPool(urls)


def test_heartbeats_keep_a_lease_while_the_agent_thinks(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TTL_SECONDS", 1.0)
    (task,) = tasks()

    async def episode() -> None:
        env = remote_env(served.url)
        try:
            await env.reset(task)
            await asyncio.sleep(2.5)
            assert (await env.step(Wait(0.0))).executed
        finally:
            await env.close()

    asyncio.run(episode())


def test_a_lease_that_the_server_ended_is_noticed_between_commands(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TTL_SECONDS", 1.0)
    monkeypatch.setattr(client.RemoteLease, "_beat", lambda self: asyncio.sleep(0))

    async def episode() -> None:
        env = remote_env(served.url)
        try:
            await env.reset(tasks()[0])
            await asyncio.sleep(2.0)
            with pytest.raises(InfrastructureError, match="silent for 1 seconds"):
                await env.step(Wait(0.0))
            with pytest.raises(InfrastructureError, match="no running episode"):
                await env.step(Wait(0.0))
            await env.reset(tasks()[0])
        finally:
            await env.close()

    asyncio.run(episode())


def test_everything_is_given_back_on_every_path(served: Served) -> None:
    """Cancelled in the middle, failed in the set-up, closed without an end."""
    (task,) = tasks()

    async def paths() -> None:
        async with EnvPool(served.url) as pool:
            cancelled = asyncio.ensure_future(judged(pool.env(), task))
            await asyncio.sleep(0.02)
            cancelled.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cancelled
            env = pool.env()
            broken = Task("broken", "Do it", "simulated", platform="simulated")
            with pytest.raises(SetupError, match="broken"):
                await env.reset(broken)
            await env.reset(task)
            await env.close()
        assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []

    asyncio.run(paths())
    served.wait_for(leases=0, free=3)


def test_the_event_loop_is_never_held_up(served: Served) -> None:
    """A ticker beside eight episodes never waits long for its turn."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            # Time during which this process had no core is not the loop's fault.
            if time.process_time() - used > 0.5 * (time.perf_counter() - before):
                longest = max(longest, time.process_time() - used)

    async def run() -> None:
        ticker = asyncio.ensure_future(tick())
        async with EnvPool(served.url) as pool:
            await asyncio.gather(*(judged(pool.env(), task) for task in tasks(8)))
        ticker.cancel()

    asyncio.run(run())
    assert longest < 0.1


def test_observations_hold_what_was_asked_for(served: Served) -> None:
    async def look(options: ObserveOptions) -> Any:
        env = remote_env(served.url, observe=options)
        try:
            return await env.reset(tasks()[0])
        finally:
            await env.close()

    plain = asyncio.run(look(ObserveOptions(image="raw")))
    assert (plain.screenshot.codec, plain.accessibility_tree) == ("raw", None)
    short = asyncio.run(look(ObserveOptions(image="webp", accessibility=True, accessibility_chars=20)))
    assert (short.screenshot.codec, len(short.accessibility_tree)) == ("webp", 20)
    assert (short.screenshot.array() == plain.screenshot.array()).all()
    with pytest.raises(InfrastructureError, match="not jpeg"):
        asyncio.run(look(ObserveOptions(image="jpeg")))


def test_a_server_that_does_not_answer_is_left_alone_ever_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(breakers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    breaker = Breaker()
    breaker.failed()
    assert breaker.closed, "once is an accident"
    rests = []
    for _ in range(7):
        breaker.failed()
        failed = now[0]
        while not breaker.closed:
            now[0] += 1
        rests.append(now[0] - failed)
    assert rests == [2, 4, 8, 16, 32, 60, 60]
    breaker.failed()
    breaker.worked()
    assert breaker.closed
