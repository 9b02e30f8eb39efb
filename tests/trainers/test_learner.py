"""Two processes take the same updates as one, go on from its states and it from theirs: gloo on the CPU."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.trainers.rollout import Rollout
from tests.tiny import Tiny, episodes, some_tasks
from tests.trainers.practising import practise
from tests.trainers.test_rl import judged

TOLERANCE = 1e-3
"""Relative; sums are taken in another order, and AdamW's first steps magnify what that changes."""
TWICE: list[Any] = [["update", []]] * 2
RUNS: dict[str, dict[str, Any]] = {
    "gspo": {"rl": {"algorithm": "gspo", "kl": 0.05, "entropy": 0.01}, "script": TWICE},
    "ppo": {"rl": {"algorithm": "ppo"}, "script": TWICE},
    "dart": {"rl": {"algorithm": "dart", "correction": "token_tis"}, "script": TWICE},
    "webrl": {"rl": {"algorithm": "webrl"}, "script": TWICE},
    "sdpo": {"rl": {"algorithm": "sdpo", "sdpo": {"reading_steps": 2}}, "script": TWICE},
    "trust": {"rl": {"algorithm": "sdpo", "sdpo": {"teacher": "trust_region"}}, "script": TWICE},
    "reactions": {
        "rl": {"algorithm": "grpo"},
        "script": [
            ["save", []],
            ["update", []],
            ["save", []],
            ["update", []],
            ["restore", [1]],
            ["restore", [0]],
            ["adjust", [{"kl": 0.1}, 0.5]],
            ["update", []],
            ["move_reference", []],
            ["supervise", []],
            ["restore", [1]],
            ["update", []],
            ["drift", []],
        ],
    },
}
SAVED: dict[str, dict[str, Any]] = {
    "before the first": {"rl": {"algorithm": "grpo"}, "script": [["save", []]]},
    "moved reference": {
        "rl": {"algorithm": "gspo", "kl": 0.05},
        "script": [["update", []], ["move_reference", []], ["save", []]],
    },
    "critic": {"rl": {"algorithm": "ppo"}, "script": [["update", []], ["save", []]]},
    "teacher": {
        "rl": {"algorithm": "sdpo", "sdpo": {"reading_steps": 2}},
        "script": [["update", []], ["save", []]],
    },
}


@pytest.fixture(scope="module")
def rollouts(tiny: Tiny) -> list[Rollout]:
    """Two groups of four, mixed the one way and the other."""
    played = episodes(tiny, some_tasks(2), samples=4)
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.25, 1.0]
    return [judged(tiny, t, reward) for t, reward in zip(played, rewards, strict=True)]


@pytest.fixture(scope="module")
def single(
    tiny: Tiny, rollouts: list[Rollout], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """What one process makes of the runs, and the folder of their states."""
    folder = tmp_path_factory.mktemp("single")
    made = {}
    for name, run in {**RUNS, **SAVED}.items():
        made[name] = practise(tiny.config, tiny.policy.uri, run, folder / name, rollouts)
    return made, folder


@pytest.fixture(scope="module")
def double(
    tiny: Tiny, rollouts: list[Rollout], single: tuple[dict[str, Any], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The same runs, each in a folder of its own; what went on from one process's states; and a full disk."""
    folder = tmp_path_factory.mktemp("double")
    runs = {name: {**run, "states": name} for name, run in {**RUNS, **SAVED}.items()}
    for name, run in SAVED.items():
        runs[f"{name} resumed"] = {"rl": run["rl"], "script": [["update", []]], "states": str(single[1] / name)}
    full = [["update", []], ["save", []], ["save on a full disk", 0], ["save on a full disk", 400_000]]
    runs["full"] = {"rl": {"algorithm": "grpo"}, "states": "full", "script": full}
    plan = {"policy": tiny.policy.uri, "config": tiny.config.model_dump(), "runs": runs}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "rollouts.pickle").write_bytes(pickle.dumps(rollouts))
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.trainers.practising"]
    ended = subprocess.run([sys.executable, "-m", *launch, str(folder)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return {name: torch.load(folder / f"{name}.pt") for name in runs}, folder


def assert_alike(found: Any, expected: Any) -> None:
    (figures, weights), (own_figures, own_weights) = found, expected
    for one, other in zip(figures, own_figures, strict=True):
        assert one == other if one is None else one == pytest.approx(other, rel=TOLERANCE, abs=1e-5)
    for name, weight in weights.items():
        assert (weight - own_weights[name]).norm() <= TOLERANCE * own_weights[name].norm(), name


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_what_one_trains(
    name: str, single: tuple[dict[str, Any], Path], double: tuple[dict[str, Any], Path]
) -> None:
    assert_alike(double[0][name], single[0][name])
    untrained = single[0]["before the first"][1]["model.language_model.norm.weight"]
    assert not torch.equal(double[0][name][1]["model.language_model.norm.weight"], untrained)


@pytest.mark.parametrize("name", SAVED)
def test_states_are_gone_on_from_by_another_number_of_processes(
    tiny: Tiny,
    rollouts: list[Rollout],
    name: str,
    single: tuple[dict[str, Any], Path],
    double: tuple[dict[str, Any], Path],
) -> None:
    run = {**SAVED[name], "script": [["update", []]]}
    from_two = practise(tiny.config, tiny.policy.uri, run, double[1] / name, rollouts)
    from_one = practise(tiny.config, tiny.policy.uri, run, single[1] / name, rollouts)
    assert_alike(from_two, from_one)
    assert_alike(double[0][f"{name} resumed"], from_one)


def test_a_full_disk_is_one_sentence_and_leaves_the_state_before(double: tuple[dict[str, Any], Path]) -> None:
    said = double[0]["full"][0][2:]
    for sentence in said:
        assert "could not be saved" in sentence
        assert sentence.endswith("free some space and run it again.")
        assert "\n" not in sentence
    assert [path.name for path in (double[1] / "full").iterdir()] == ["step-000001"]
