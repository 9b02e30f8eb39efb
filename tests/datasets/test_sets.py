"""Training sets are `datasets` datasets that anybody opens, images included, and damage is one sentence."""

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from flywheel.actions.registry import action_space
from flywheel.chat import Words
from flywheel.datasets.sets import FEATURES, keep_per_task, load_rows, row_of, save_set, size_of
from flywheel.errors import DataError
from flywheel.testing import random_trajectory
from flywheel.types import Trajectory
from tests.limits import files_up_to

WORDS = Words(action_space("computer_use"), ["task", "last_result"])


def trajectories(count: int, **fields: Any) -> list[Trajectory]:
    return [random_trajectory(f"t{i}", 3, (64, 48), codec="raw", **fields) for i in range(count)]


def saved(folder: Path, played: list[Trajectory], source: str = "rollout", **options: Any) -> Path:
    save_set([row_of(trajectory, WORDS, source) for trajectory in played], folder, **options)
    return folder


def foreign(folder: Path, columns: dict[str, Any]) -> Path:
    """A set as others make them: conversations and images, and nothing of ours."""
    datasets.Dataset.from_dict(columns).save_to_disk(folder)
    return folder


MESSAGES = [{"role": "user", "content": "<image>Click Save ."}, {"role": "assistant", "content": "No."}]


def test_anybody_can_open_it_images_included(tmp_path: Path) -> None:
    played = trajectories(4)
    opened = datasets.load_from_disk(saved(tmp_path / "set", played))
    assert opened.features == FEATURES
    assert len(opened) == 4
    for row, trajectory in zip(opened, played, strict=True):
        assert row["trajectory_id"] == trajectory.id
        assert row["instruction"] == trajectory.task.instruction
        assert [message["role"] for message in row["messages"]] == ["system", *["user", "assistant"] * 3]
        assert row["messages"][1]["content"].startswith("<image>[Task]\n")
        assert [message["content"] for message in row["messages"][2::2]] == [turn.text for turn in trajectory.turns]
        assert row["reward"] == trajectory.task_reward
        for image, turn in zip(row["images"], trajectory.turns, strict=True):
            assert (np.asarray(image) == turn.observation.screenshot.array()).all()


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    """Pixels, ids, and the bytes of images that were encoded already."""
    played = [*trajectories(2), random_trajectory("p", 2, (64, 48)), random_trajectory("w", 2, (64, 48), codec="webp")]
    rows = list(load_rows(saved(tmp_path / "set", played)))
    for row, trajectory in zip(rows, played, strict=True):
        assert [tuple(ids) for ids in row["prompt_ids"]] == [turn.prompt_ids for turn in trajectory.turns]
        assert [tuple(ids) for ids in row["completion_ids"]] == [turn.completion_ids for turn in trajectory.turns]
        for image, turn in zip(row["images"], trajectory.turns, strict=True):
            shot = turn.observation.screenshot
            assert image.size == shot.size
            assert (image.array() == shot.array()).all()
            assert shot.codec == "raw" or (image.data, image.codec) == (shot.data, shot.codec)


def test_saving_twice_writes_the_very_same_images(tmp_path: Path) -> None:
    first, again = (
        [image.sha256 for row in load_rows(saved(tmp_path / name, trajectories(3))) for image in row["images"]]
        for name in ("one", "two")
    )
    assert first == again


def test_turns_that_were_not_read_or_not_executed_are_masked(tmp_path: Path) -> None:
    (trajectory,) = trajectories(1)
    first, second, third = trajectory.turns
    turns = (replace(first, action=None, error="unreadable"), replace(second, executed=False), third)
    (row,) = load_rows(saved(tmp_path / "set", [replace(trajectory, turns=turns)]))
    assert row["turn_mask"] == [False, False, True]
    assert len(row["messages"]) == 7


def test_a_few_of_each_task_are_kept_the_shortest_first() -> None:
    played = [random_trajectory(f"t{i}", turns) for i, turns in enumerate([5, 3, 4, 2, 6, 1] * 20)]
    kept = keep_per_task(played, 2)
    assert max(Counter(t.task.id for t in kept).values()) == 2
    for task in {t.task.id for t in played}:
        lengths = sorted(len(t.turns) for t in played if t.task.id == task)
        assert sorted(len(t.turns) for t in kept if t.task.id == task) == lengths[:2]
    assert kept == keep_per_task(list(reversed(played)), 2)
    assert len(keep_per_task(played, 0)) == len(played)


def test_an_empty_set_is_refused_and_leaves_the_old_one(tmp_path: Path) -> None:
    folder = saved(tmp_path / "iter-01", trajectories(2))
    with pytest.raises(DataError, match="iter-01 would be empty"):
        save_set([], folder)
    assert size_of(folder) == 2


def test_a_set_replaces_the_old_one_even_while_that_is_open(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", trajectories(2))
    rows = load_rows(folder)
    first = next(rows)
    saved(folder, trajectories(3))
    assert next(rows)["trajectory_id"] != first["trajectory_id"]
    assert size_of(folder) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_demonstrations_are_mixed_in_first(tmp_path: Path) -> None:
    shown = saved(tmp_path / "shown", trajectories(2), "demonstration")
    mixed = saved(tmp_path / "mixed", trajectories(3), mixed_in=shown)
    assert [row["source"] for row in load_rows(mixed)] == ["demonstration"] * 2 + ["rollout"] * 3


def test_a_foreign_set_is_not_mixed_in(tmp_path: Path) -> None:
    other = foreign(tmp_path / "other", {"messages": [MESSAGES], "images": [[]]})
    with pytest.raises(DataError, match=r"other has other columns.*cannot be mixed in"):
        saved(tmp_path / "mixed", trajectories(1), mixed_in=other)


@pytest.mark.parametrize(("suffix", "codec"), [("png", "png"), ("jpg", "jpeg"), ("webp", "webp"), ("bmp", "raw")])
def test_foreign_sets_may_name_files_of_any_format(tmp_path: Path, suffix: str, codec: str) -> None:
    picture = Image.fromarray(trajectories(1)[0].turns[0].observation.screenshot.array())
    picture.save(tmp_path / f"a.{suffix}")
    columns = {"messages": [MESSAGES], "images": [[str(tmp_path / f"a.{suffix}")]]}
    dataset = datasets.Dataset.from_dict(columns).cast_column("images", datasets.List(datasets.Image()))
    dataset.save_to_disk(tmp_path / "set")
    (row,) = load_rows(tmp_path / "set")
    (image,) = row["images"]
    assert (image.codec, image.size) == (codec, (64, 48))
    assert (image.array() == np.asarray(Image.open(tmp_path / f"a.{suffix}").convert("RGB"))).all()


@pytest.mark.parametrize("codec", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.6, 0.95])
def test_a_truncated_image_is_one_sentence(tmp_path: Path, codec: str, keep: float) -> None:
    out = io.BytesIO()
    Image.fromarray(trajectories(1)[0].turns[0].observation.screenshot.array()).save(out, codec)
    data = out.getvalue()[: int(keep * len(out.getvalue()))]
    features = datasets.Features({name: FEATURES[name] for name in ("messages", "images")})
    columns = {"messages": [MESSAGES], "images": [[{"bytes": data, "path": None}]]}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "set")
    with pytest.raises(DataError, match="holds an image that cannot be read") as caught:
        list(load_rows(tmp_path / "set"))
    assert "\n" not in str(caught.value)


def test_no_set_and_a_set_of_another_shape_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no training set"):
        list(load_rows(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no training set"):
        size_of(tmp_path / "empty")
    with pytest.raises(DataError, match="lacks the column 'images'"):
        list(load_rows(foreign(tmp_path / "text", {"messages": [MESSAGES]})))


def test_a_set_that_was_cut_is_one_sentence(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", trajectories(3))
    (arrow,) = folder.glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:1000])
    with pytest.raises(DataError, match="holds no training set"):
        list(load_rows(folder))


def test_a_full_disk_leaves_the_set_before(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", trajectories(2))
    with files_up_to(5000), pytest.raises(DataError, match=r"could not be written.*free some space"):
        saved(folder, trajectories(4))
    assert size_of(folder) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
