"""`flywheel judge`: an outcome judge against the evaluators."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from tests.cli.conftest import Flywheel, Ran
from tests.hosted_model import served
from tests.tiny import Tiny


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Ten judged episodes, five of them solved, and one that was not judged; the home they are in."""
    store = TrajectoryStore(tmp_path / "store", fsync=False)
    for number, reward in enumerate([1.0] * 5 + [0.0] * 5 + [None]):
        drawn = random_trajectory(f"e{number:02d}", 1, (32, 32))
        task = replace(drawn.task, instruction=f"Task {number} of ten")
        store.publish(replace(drawn, task=task, task_reward=reward), partition="eval-sft")
    return tmp_path


def asked(run: Flywheel, home: Path, *settings: str) -> tuple[Ran, dict[str, Any]]:
    given = [part for setting in (f"home={home}", *settings) for part in ("--set", setting)]
    ran = run("judge", "--partition", "eval-sft", "--json", home / "judge.json", *given)
    return ran, json.loads((home / "judge.json").read_text()) if ran.code == 0 else {}


def test_a_judge_is_measured_against_the_evaluators(staged: Flywheel, evaluated: Path) -> None:
    """It is wrong about one success and one failure, and silent about one success."""
    said = ["success"] * 3 + ["failure", "dunno", "success"] + ["failure"] * 4

    def votes(body: dict[str, Any]) -> list[dict[str, str]]:
        number = int(body["messages"][1]["content"][-1]["text"].split()[2])
        return [{"content": f"Verdict: {said[number]}"}] * body["n"]

    with served(votes) as server:
        ran, found = asked(staged, evaluated, f"hosted.url={server.config.url}", "hosted.model=big-one")
    assert ran.code == 0, ran.err
    assert [found[name]["hits"] for name in ("accuracy", "precision", "recall")] == [7, 3, 3]
    assert [found[name]["of"] for name in ("accuracy", "precision", "recall")] == [9, 4, 4]
    assert found["abstained"] == 1
    assert "7 of 9" in ran.out
    assert "big-one" in ran.out


def test_a_policy_of_ours_may_be_the_judge(staged: Flywheel, tiny: Tiny, evaluated: Path) -> None:
    """One that nobody taught says nothing that is a verdict: it abstains, which is no failure of the episodes."""
    ran, found = asked(staged, evaluated, f"judge.policy={tiny.policy.uri}", "judge.max_tokens=4", "judge.votes=2")
    assert ran.code == 0, ran.err
    assert (found["abstained"], found["accuracy"]["of"], found["judge"]) == (10, 0, tiny.policy.uri)


def test_what_cannot_be_judged_is_one_sentence(staged: Flywheel, evaluated: Path) -> None:
    home = ("--set", f"home={evaluated}")
    assert "There is no partition 'none'" in staged("judge", "--partition", "none", *home).refusal
    ran, _ = asked(staged, evaluated, "judge.policy=nobody")
    assert "There is no policy 'nobody'" in ran.refusal
