"""`flywheel judge`: an outcome judge against the evaluators."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from tests.cli.conftest import Flywheel
from tests.hosted_model import served


def test_a_judge_is_measured_against_the_evaluators(flywheel: Flywheel, tmp_path: Path) -> None:
    """Ten episodes; the judge is wrong about one success and one failure, and silent about one success."""
    rewards = [1.0] * 5 + [0.0] * 5 + [None]
    said = ["success"] * 3 + ["failure", "dunno", "success"] + ["failure"] * 4
    store = TrajectoryStore(tmp_path / "store", fsync=False)
    for number, reward in enumerate(rewards):
        drawn = random_trajectory(f"e{number:02d}", 1, (32, 32))
        task = replace(drawn.task, instruction=f"Task {number} of ten")
        store.publish(replace(drawn, task=task, task_reward=reward), partition="eval-sft")

    def votes(body: dict[str, Any]) -> list[dict[str, str]]:
        number = int(body["messages"][1]["content"][-1]["text"].split()[2])
        return [{"content": f"Verdict: {said[number]}"}] * body["n"]

    with served(votes) as server:
        settings = [f"home={tmp_path}", f"hosted.url={server.config.url}", "hosted.model=big-one"]
        given = [part for setting in settings for part in ("--set", setting)]
        ran = flywheel("judge", "--partition", "eval-sft", "--json", str(tmp_path / "judge.json"), *given)
        assert flywheel("judge", "--partition", "none", *given).code == 1
    assert ran.code == 0
    found = json.loads((tmp_path / "judge.json").read_text())
    assert [found[name]["hits"] for name in ("accuracy", "precision", "recall")] == [7, 3, 3]
    assert [found[name]["of"] for name in ("accuracy", "precision", "recall")] == [9, 4, 4]
    assert found["abstained"] == 1
    assert "7 of 9" in ran.out
    assert "big-one" in ran.out
