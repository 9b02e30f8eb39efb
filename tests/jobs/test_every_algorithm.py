"""Every row of the table through the stage, on a real policy, real desktops and a real store."""

from pathlib import Path

import numpy as np
import pytest

from flywheel.jobs import grpo
from flywheel.store.opening import open_store
from flywheel.trainers.algorithms import ALGORITHMS
from tests.school import School
from tests.tiny import Notes

SMALL = ("rl.steps=1", "rl.prompts=2", "rl.group=6", "rl.value_pretraining=0", "rl.sdpo.reading_updates=0")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_plays_trains_and_publishes(school: School, tmp_path: Path, name: str) -> None:
    config, notes = school.config(tmp_path, *SMALL, f"rl.algorithm={name}"), Notes()
    args = {"init": school.policy, "tasks": str(school.tasks), "out": str(tmp_path / "grpo"), "version": name}
    result = grpo.run(config, {**args, "partition": "practice", "iteration": 1, "seed": 3}, notes)
    assert (result["updates"], result["algorithm"]) == (1, name)
    assert result["policy"]["fingerprint"] != school.policy["fingerprint"]
    figures = notes.curve[0]
    assert all(np.isfinite(value) for value in figures.values()), figures
    assert figures["grad_norm"] > 0
    assert abs(figures["mismatch_k3"]) < 1e-6
    stored = open_store(config).trajectories("practice")
    assert len(stored) == result["episodes"] >= 12
    assert any(trajectory.advantage for trajectory in stored)
