"""`env.backend=remote` in a configuration is all it takes to play on env servers."""

import asyncio
import subprocess
import sys
from pathlib import Path

from flywheel.config import load_config
from flywheel.envs.base import Env
from flywheel.jobs.environments import make_env
from tests.envs.server.serving import SCREEN, serving, solution, tasks


async def reward_and_codec(env: Env) -> tuple[float, str]:
    (task,) = tasks()
    try:
        seen = await env.reset(task)
        for action in solution(task):
            await env.step(action)
        assert seen.screenshot is not None
        assert env.capabilities.screen == SCREEN
        return await env.evaluate(), seen.screenshot.codec
    finally:
        await env.close()


def test_who_plays_on_a_simulated_desktop_imports_no_client_and_no_pack() -> None:
    program = (
        "import sys, flywheel.jobs.tasks; from flywheel.jobs.environments import make_env; "
        "from flywheel.config import load_config; make_env(load_config('embedded')); "
        "print(*{'httpx', 'flywheel.packs', 'flywheel.datasets.needs'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_a_profile_chooses_where_desktops_are(tmp_path: Path) -> None:
    with serving(tmp_path, "-n", "1") as served:
        settings = ["env.backend=remote", f"env.urls={served.url}", "env.image=webp"]
        remote = make_env(load_config("embedded", settings))
        assert asyncio.run(reward_and_codec(remote)) == (1.0, "webp")
        assert sum(each["episodes"] for each in served.get("/v1/desktops")) == 1
    assert asyncio.run(reward_and_codec(make_env(load_config("embedded")))) == (1.0, "raw")
