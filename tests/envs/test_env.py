"""What only the simulated back end promises."""

import asyncio

import pytest

from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import SetupError
from flywheel.types import Size


def test_a_task_for_another_screen_or_layout_is_refused() -> None:
    (task,) = generate_tasks(split="train", count=1, seed=0, screen=Size(160, 128))
    for env in (SimulatedEnv(Size(320, 240)), SimulatedEnv(Size(160, 128), "free")):
        with pytest.raises(SetupError, match=r"160 x 128 \(roomy\).*env.width"):
            asyncio.run(env.reset(task))


def test_the_accessibility_tree_comes_when_asked_for() -> None:
    (task,) = generate_tasks(split="train", count=1, seed=0, screen=Size(160, 128))
    assert asyncio.run(SimulatedEnv(Size(160, 128)).reset(task)).accessibility_tree is None
    tree = asyncio.run(SimulatedEnv(Size(160, 128), accessibility=True).reset(task)).accessibility_tree
    assert tree is not None
    heading, *lines = tree.splitlines()
    assert heading.split("\t") == ["role", "name", "state", "bounds"]
    assert len(lines) == 3
    assert all(len(line.split("\t")) == 4 for line in lines)
