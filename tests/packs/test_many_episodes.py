"""Two hundred episodes in a row on eight desktops: whatever they take of the host is given back."""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flywheel.envs.base import ObserveOptions
from flywheel.envs.pool import EnvPool
from flywheel.envs.server.machines.xvfb.uids import UIDS, processes_of
from flywheel.envs.server.places import desktops_root
from flywheel.packs.offline.pack import pack_tasks
from flywheel.processes import family, is_alive
from flywheel.rollout.agents.solutions import SolutionAgent
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import play
from flywheel.types import Sampling, Task, Trajectory
from tests.envs.server.episodes.working import needs_desktops
from tests.envs.server.serving import Served, serving, wait_dead
from tests.packs.playing import SPACE

pytestmark = [pytest.mark.desktop, needs_desktops]

DESKTOPS, EPISODES, WARM_UP = 8, 200, 48
FAMILIES = ("terminal/write_line", "text_editor/append_line", "file_manager/rename")
MOST_GROWTH = 1.1
"""Of the memory of server and workers, 1.1 GB once every worker has used every checker: half a megabyte an episode."""


def test_two_hundred_episodes_on_eight_desktops_leave_nothing() -> None:
    tasks = pack_tasks("train", WARM_UP + EPISODES, families=FAMILIES)
    with serving(desktops_root(), "--backend", "xvfb", "-n", str(DESKTOPS), "--screen", "640x384") as served:
        check(play_all(served.url, tasks[:WARM_UP]))
        before, memory = rested(served), resident(served)
        check(play_all(served.url, tasks[WARM_UP:]))
        after = rested(served)
        assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
        assert resident(served) < MOST_GROWTH * memory
        members = family(served.process.pid)
        served.stop()
    wait_dead(*members)
    assert not list((desktops_root() / "run").glob(f"{served.process.pid}-*"))


def play_all(url: str, tasks: list[Task]) -> list[Trajectory]:
    """The solution of every task, on all desktops at once."""
    found: list[Trajectory] = []

    async def run() -> None:
        async with EnvPool(url, observe=ObserveOptions(image="jpeg")) as pool:
            specs = [EpisodeSpec(task.id, task, Sampling(), 20) for task in tasks]
            agent = SolutionAgent(SPACE)
            await play(specs, agent, SPACE, pool.env, concurrency=DESKTOPS, on_trajectory=found.append)

    asyncio.run(run())
    return found


def check(played: list[Trajectory]) -> None:
    wrong = [f"{t.task.family} {t.task_reward} {t.error}" for t in played if t.task_reward != 1.0]
    assert not wrong, "\n".join(wrong)


def rested(served: Served) -> dict[str, Any]:
    """What is held once every desktop is free; programs that a fresh desktop starts late are waited for."""
    served.wait_for(180, free=DESKTOPS, leases=0)
    deadline, last = time.monotonic() + 30, held(served)
    while time.monotonic() < deadline:
        time.sleep(2)
        now = held(served)
        if now == last:
            break
        last = now
    return last


def held(served: Served) -> dict[str, Any]:
    """By the server and everything below it, but for its memory."""
    members = family(served.process.pid)
    (folder,) = (desktops_root() / "run").glob(f"{served.process.pid}-*")
    owners = {uid for uid, pids in processes_of(UIDS).items() if members.intersection(pids)}
    return {
        "processes": Counter(Path(f"/proc/{pid}/comm").read_text().strip() for pid in members if is_alive(pid)),
        "descriptors": [len(os.listdir(f"/proc/{pid}/fd")) for pid in (served.process.pid, *served.workers())],
        "uids": len(owners),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "files": Counter(path.relative_to(folder).parts[0] for path in folder.rglob("*")),
    }


def resident(served: Served) -> int:
    """KiB of the server and its workers."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (served.process.pid, *served.workers())]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") // 1024
