"""Steps a second of simulated desktops behind HTTP, against the same desktops in this process.

    python benchmarks/env_server.py [--desktops 8] [--seconds 5]

Both ways play the same: every desktop its own episode, the pointer moved to a new place each step, the screenshot
fetched as raw RGB. A simulated step takes well under a millisecond, so the ratio is the price of HTTP and of two more
processes; a real desktop takes 10 to 100 ms a step and hides it. Wall-clock time, since the work is spread over
processes.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flywheel.envs.base import Env, ObserveOptions
from flywheel.envs.pool import EnvPool
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.types import Move, Size, Task

SCREEN = Size(160, 128)
SERVE = [sys.executable, "-c", "from flywheel.cli.app import main; main()", "desktops", "serve", "--port", "0"]


@contextmanager
def server(desktops: int) -> Iterator[str]:
    """URL of an env server with so many simulated desktops."""
    with tempfile.TemporaryDirectory() as root:
        environment = {**os.environ, "FLYWHEEL_DESKTOPS": root}
        process = subprocess.Popen([*SERVE, "-n", str(desktops)], env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            yield next(line.split(" at ")[1].strip() for line in process.stderr if line.startswith("Serving "))
        finally:
            process.terminate()
            process.wait()


async def steps_per_second(open_env: Callable[[], Env], tasks: list[Task], seconds: float) -> float:
    """Of all desktops together, one episode each."""
    envs = [open_env() for _ in tasks]
    try:
        await asyncio.gather(*(env.reset(task) for env, task in zip(envs, tasks, strict=True)))
        started = time.perf_counter()
        counts = await asyncio.gather(*(play(env, started + seconds) for env in envs))
        return sum(counts) / (time.perf_counter() - started)
    finally:
        await asyncio.gather(*(env.close() for env in envs))


async def play(env: Env, end: float) -> int:
    steps = 0
    while time.perf_counter() < end:
        await env.step(Move(steps * 7 % SCREEN.width, steps * 5 % SCREEN.height))
        steps += 1
        await asyncio.sleep(0)
    return steps


async def over_http(url: str, tasks: list[Task], seconds: float) -> float:
    async with EnvPool(url, observe=ObserveOptions(image="raw")) as pool:
        return await steps_per_second(pool.env, tasks, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--desktops", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    given = parser.parse_args()
    tasks = generate_tasks(split="train", count=given.desktops, seed=0, screen=SCREEN)
    direct = asyncio.run(steps_per_second(lambda: SimulatedEnv(SCREEN), tasks, given.seconds))
    with server(given.desktops) as url:
        remote = asyncio.run(over_http(url, tasks, given.seconds))
    print(f"{given.desktops} simulated desktops, {SCREEN.width} x {SCREEN.height}, raw screenshots")
    print(f"  baseline: in this process   {direct:>9,.0f} steps/s")
    print(f"  behind HTTP                 {remote:>9,.0f} steps/s   {1000 * given.desktops / remote:.1f} ms a step")
    print(f"  ratio                       {remote / direct:>9.4f}")


if __name__ == "__main__":
    main()
