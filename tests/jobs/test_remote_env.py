"""`env.backend=remote` in a configuration is all it takes to play on env servers."""

import asyncio
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


def test_a_profile_chooses_where_desktops_are(tmp_path: Path) -> None:
    with serving(tmp_path, "-n", "1") as served:
        settings = ["env.backend=remote", f"env.urls={served.url}", "env.image=webp"]
        remote = make_env(load_config("embedded", settings))
        assert asyncio.run(reward_and_codec(remote)) == (1.0, "webp")
        assert sum(each["episodes"] for each in served.get("/v1/desktops")) == 1
    assert asyncio.run(reward_and_codec(make_env(load_config("embedded")))) == (1.0, "raw")
