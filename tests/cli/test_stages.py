"""Stages from the command line, for real and small: what they make, what they reuse, how they refuse."""

import json
import os
from pathlib import Path

import datasets
import pytest

from flywheel.store.store import TrajectoryStore
from tests.cli.conftest import Flywheel
from tests.tiny import Tiny


@pytest.fixture
def home(tmp_path: Path, staged: Flywheel) -> Flywheel:
    return lambda *arguments: staged(*arguments, "--set", f"home={tmp_path}")


def test_training_from_nothing_makes_what_it_needs_and_reuses_it(home: Flywheel, tmp_path: Path) -> None:
    first = home("train", "sft")
    assert first.code == 0, first.err
    made = {path.parent.name for path in tmp_path.glob("experiments/default/checkpoints/*/policy.json")}
    assert made == {"base", "sft"}
    (demonstrations,) = tmp_path.glob("demonstrations/*")
    assert len(datasets.load_from_disk(demonstrations)) == 8
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("experiments/default/checkpoints/base/*")}
    again = home("train", "sft", "--policy", "sft", "--version", "sft-2", "--data", demonstrations)
    assert again.code == 0, again.err
    assert "from" in again.out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads((tmp_path / "experiments/default/checkpoints/sft-2/policy.json").read_text())["parent"] == "sft"


def test_eval_writes_the_report(home: Flywheel, tiny: Tiny, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    ran = home("eval", "--policy", tiny.policy.uri, "--episodes", 6, "--seed", 3, "--json", target)
    assert ran.code == 0, ran.err
    report = json.loads(target.read_text())
    expected = {"success_rate", "ci_low", "ci_high", "episodes", "solved", "env_errors", "by_family", "policy", "seed"}
    assert expected <= report.keys()
    assert (report["policy"], report["seed"], report["split"]) == ("untrained", 3, "heldout")
    assert report["episodes"] + report["env_errors"] == 6
    assert report["ci_low"] <= report["success_rate"] <= report["ci_high"]
    assert sum(family["episodes"] for family in report["by_family"].values()) == report["episodes"]
    assert "success" in ran.out
    assert len(TrajectoryStore(tmp_path / "store").ids(report["partition"])) == 6
    assert home("eval", "--policy", tiny.policy.uri, "--episodes", 6, "--seed", 3, "--json", target).code == 0
    assert json.loads(target.read_text())["per_task"] == report["per_task"], "the same seed, the same episodes"


def test_rollouts_go_to_the_store_and_a_set_without_successes_is_refused(
    home: Flywheel, tiny: Tiny, tmp_path: Path
) -> None:
    ran = home("rollout", "--policy", tiny.policy.uri, "--iteration", 1, "--set", "rollout.tasks=3")
    assert ran.code == 0, ran.err
    assert "flywheel sql" in ran.out
    episodes = TrajectoryStore(tmp_path / "store").trajectories("iter-01")
    assert len(episodes) == 6
    assert {episode.iteration for episode in episodes} == {1}
    refused = home("sft-set", "--iteration", 1, "--set", "flywheel.demonstrations=false")
    assert refused.code == 1
    assert refused.err.splitlines()[-1].startswith("The set iter-01 would be empty")
    assert refused.err.count("The set iter-01 would be empty") == 1


def test_policy_gradient_publishes_under_its_own_name(home: Flywheel, tiny: Tiny, tmp_path: Path) -> None:
    small = ("rl.steps=1", "rl.prompts=2", "rl.group=2", "rl.families=[]")
    ran = home(
        "train", "grpo", "--policy", tiny.policy.uri, *(word for setting in small for word in ("--set", setting))
    )
    assert ran.code == 0, ran.err
    assert len(TrajectoryStore(tmp_path / "store").ids("grpo-untrained")) == 4
    assert (tmp_path / "experiments/default/checkpoints/grpo-untrained/policy.json").is_file()


def test_a_partition_that_another_process_holds_is_refused(home: Flywheel, tiny: Tiny, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store")
    store.begin("iter-01")
    ran = home("rollout", "--policy", tiny.policy.uri, "--iteration", 1)
    store.release("iter-01")
    assert ran.code == 1
    assert f"Partition 'iter-01' is held by process {os.getpid()}" in ran.err.splitlines()[-1]
    assert store.ids("iter-01") == []


def test_a_malformed_task_file_is_refused_by_line(home: Flywheel, tiny: Tiny, tmp_path: Path) -> None:
    assert home("tasks").code == 0
    (file,) = tmp_path.glob("tasks/*/heldout.jsonl")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], '{"id": "x"}']))
    ran = home("eval", "--policy", tiny.policy.uri)
    assert ran.code == 1
    assert f"{file} line 3: Task x has no 'instruction'; add it." in ran.err.splitlines()[-1]


def test_a_corrupt_checkpoint_is_refused(home: Flywheel, tiny: Tiny, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    copy.mkdir()
    for file in Path(tiny.policy.uri).iterdir():
        (copy / file.name).write_bytes(file.read_bytes()[: 5000 if file.suffix == ".safetensors" else None])
    ran = home("eval", "--policy", copy, "--episodes", 2)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].endswith("make the checkpoint again.")
    (copy / "policy.json").write_text("{")
    assert "policy.json is damaged" in home("eval", "--policy", copy).refusal


def test_a_set_with_a_truncated_image_is_refused(home: Flywheel, tiny: Tiny, tmp_path: Path) -> None:
    assert home("demonstrations").code == 0
    (folder,) = tmp_path.glob("demonstrations/*")
    rows = datasets.load_from_disk(folder).cast_column("images", datasets.List(datasets.Image(decode=False)))
    halved = rows.map(lambda row: {"images": [{**image, "bytes": image["bytes"][:40]} for image in row["images"]]})
    halved.save_to_disk(tmp_path / "halved")
    ran = home("train", "sft", "--policy", tiny.policy.uri, "--data", tmp_path / "halved")
    assert ran.code == 1
    assert "image" in ran.err.splitlines()[-1]
    assert not (tmp_path / "experiments/default/checkpoints/sft").exists()


def test_a_folder_that_is_no_set_is_refused_before_anything_starts(home: Flywheel, tmp_path: Path) -> None:
    assert "holds no training set" in home("train", "sft", "--data", tmp_path).refusal
