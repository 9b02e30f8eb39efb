"""Names become folders and policies, and what is missing or damaged is one sentence."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from flywheel.config import load_config
from flywheel.errors import CheckpointError, PolicyError
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace, iteration_name, read_policy, write_policy


def workspace(home: Path, *settings: str) -> Workspace:
    return Workspace(load_config("embedded", [f"home={home}", *settings]))


def checkpoint(place: Workspace, version: str, age: int = 0) -> PolicyRef:
    folder = place.checkpoint_dir(version)
    folder.mkdir(parents=True)
    ref = PolicyRef(version, str(folder), "base", "0123")
    write_policy(folder, ref)
    os.utime(folder / "policy.json", (1e9 - age, 1e9 - age))
    return ref


def test_iterations_sort_by_their_names() -> None:
    names = [iteration_name(i) for i in range(1, 100)]
    assert names[0] == "iter-01"
    assert names == sorted(names)


def test_a_version_is_found_by_its_name_and_by_its_folder(tmp_path: Path) -> None:
    place = workspace(tmp_path)
    ref = checkpoint(place, "iter-01")
    assert place.policy("iter-01") == ref
    assert place.policy(str(place.checkpoint_dir("iter-01"))) == ref


def test_the_folder_of_any_saved_model_is_a_policy(tmp_path: Path) -> None:
    """As a user would load a model from the hub that was downloaded."""
    model = tmp_path / "Qwen3-VL"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert workspace(tmp_path).policy(str(model)) == PolicyRef("Qwen3-VL", str(model))


def test_versions_are_listed_in_the_order_they_were_made(tmp_path: Path) -> None:
    place = workspace(tmp_path)
    assert place.versions() == []
    for age, version in enumerate(["iter-02", "base", "iter-01"]):
        checkpoint(place, version, age)
    assert place.versions() == ["iter-01", "base", "iter-02"]


def test_what_is_in_the_making_is_no_version(tmp_path: Path) -> None:
    """Neither a folder without policy.json nor one that is about to be renamed, nor states to resume from."""
    place = workspace(tmp_path)
    checkpoint(place, "iter-01")
    checkpoint(place, ".iter-02.new")
    for name in ("iter-03", "iter-02.trainer"):
        place.checkpoint_dir(name).mkdir()
    assert place.versions() == ["iter-01"]


@pytest.mark.parametrize("reference", ["itre-01", "", "/nowhere", "..", "~/nowhere"])
def test_a_missing_policy_names_those_that_are_there(tmp_path: Path, reference: str) -> None:
    place = workspace(tmp_path)
    checkpoint(place, "iter-01")
    with pytest.raises(PolicyError) as caught:
        place.policy(reference)
    assert "\n" not in str(caught.value)
    assert "known: iter-01" in str(caught.value)


def test_without_any_the_sentence_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"no policy 'base'.*known: none yet.*flywheel demo"):
        workspace(tmp_path).policy("base")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"policy\.json is missing, so the checkpoint is unfinished"),
        ("", "is damaged"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("null", "is damaged"),
        ('{"uri": "x"}', "is damaged"),
        ('{"version": "x", "colour": 1}', "is damaged"),
    ],
)
def test_a_checkpoint_without_its_last_file_is_not_taken_for_a_model(
    tmp_path: Path, content: str | None, message: str
) -> None:
    """Its config.json and weights may be there: it was cut off, or damaged, and its parent is unknown."""
    place = workspace(tmp_path)
    checkpoint(place, "iter-01")
    folder = place.checkpoint_dir("iter-01")
    (folder / "config.json").write_text("{}")
    (folder / "policy.json").unlink()
    if content is not None:
        (folder / "policy.json").write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        place.policy("iter-01")
    assert "\n" not in str(caught.value)


def test_a_reference_is_written_whole_and_points_where_it_lies(tmp_path: Path) -> None:
    ref = PolicyRef("iter-01", "elsewhere", "base", "0123")
    write_policy(tmp_path, ref)
    assert json.loads((tmp_path / "policy.json").read_text()) == asdict(ref)
    assert read_policy(tmp_path) == PolicyRef("iter-01", str(tmp_path), "base", "0123")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.json"]


def test_a_knob_of_the_tasks_changes_where_they_lie(tmp_path: Path) -> None:
    """So that no task file is overwritten by one of other content."""
    base = workspace(tmp_path)
    same = workspace(tmp_path, "sft.lr=1e-9", "rollout.tasks=3", "experiment=other")
    others = [workspace(tmp_path, setting) for setting in ("seed=1", "tasks.train=7", "env.width=320")]
    assert same.tasks_dir == base.tasks_dir
    assert len({base.tasks_dir, *(other.tasks_dir for other in others)}) == 4
    assert base.demonstrations_dir.parent == tmp_path / "demonstrations"


def test_experiments_share_tasks_and_nothing_else(tmp_path: Path) -> None:
    one, other = workspace(tmp_path), workspace(tmp_path, "experiment=other")
    assert one.tasks_dir == other.tasks_dir
    assert one.checkpoint_dir("sft") != other.checkpoint_dir("sft")
    assert one.set_dir(1) == tmp_path / "experiments" / "default" / "sets" / "iter-01"
    assert one.report_path("sft") == tmp_path / "experiments" / "default" / "reports" / "sft.json"
    assert one.run_dir("sft", "iter-01") == tmp_path / "experiments" / "default" / "runs" / "sft-iter-01"
