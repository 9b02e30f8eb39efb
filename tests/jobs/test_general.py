"""General conversations are mixed in by share, by seed, and trained like any other."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from flywheel.errors import DataError
from flywheel.jobs import sft
from flywheel.jobs.general import general_samples
from flywheel.sections import SftConfig
from tests.jobs.test_sft import args_for
from tests.school import School
from tests.tiny import Notes, Tiny


def chatter(folder: Path, count: int) -> Path:
    rows: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "user", "content": f"What follows {n} ?"},
                {"role": "assistant", "content": f"{n + 1} follows."},
            ],
            "images": [],
        }
        for n in range(count)
    ]
    features = datasets.Features(
        {
            "messages": datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")}),
            "images": datasets.List(datasets.Image()),
        }
    )
    datasets.Dataset.from_list(rows, features=features).save_to_disk(folder)
    return folder


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.2, 3), (0.5, 12), (0.75, 36)])
def test_the_share_is_that_of_the_whole_set(tiny: Tiny, tmp_path: Path, share: float, expected: int) -> None:
    config = SftConfig(mix=str(chatter(tmp_path / "chat", 10)), mix_share=share)
    samples = general_samples(config, tiny.chat, 12, seed=3)
    said = [tiny.chat.decode(sample.input_ids[sample.train_mask].tolist()) for sample in samples]
    assert len(said) == expected
    assert len(set(said)) == min(expected, 10)
    assert all(text.endswith("follows.") for text in said)
    again = general_samples(config, tiny.chat, 12, seed=3)
    assert [sample.input_ids.tolist() for sample in again] == [sample.input_ids.tolist() for sample in samples]


def test_without_a_folder_nothing_is_mixed_in(tiny: Tiny) -> None:
    assert general_samples(SftConfig(mix_share=0.5), tiny.chat, 12, seed=3) == []


def test_a_folder_without_conversations_is_one_sentence(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no training set"):
        general_samples(SftConfig(mix=str(tmp_path / "none")), tiny.chat, 12, seed=3)


def test_the_stage_trains_on_both(school: School, tmp_path: Path) -> None:
    config = school.config(tmp_path, f"sft.mix={chatter(tmp_path / 'chat', 4)}", "sft.mix_share=0.2")
    result = sft.run(config, args_for(school, tmp_path / "out", steps=1), Notes())
    assert result["trajectories"] == 8 + 2
