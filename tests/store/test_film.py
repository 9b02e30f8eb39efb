"""A trajectory as a film: ffprobe reads it, and its pictures show the turns with their actions."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flywheel.errors import ConfigError, CorruptTrajectoryError, StoreError
from flywheel.store.film import write_film
from flywheel.testing import random_trajectory
from flywheel.types import Click, Observation, Screenshot, Trajectory, Turn, Type

pytestmark = pytest.mark.skipif(
    not (shutil.which("ffmpeg") and shutil.which("ffprobe")), reason="needs apt-get install ffmpeg"
)

GREY = Screenshot.from_array(np.full((128, 160, 3), 90, np.uint8))


def playing(*turns: Turn) -> Trajectory:
    return replace(random_trajectory("some-id", 0, task_reward=1.0), turns=turns)


def turn(screenshot: Screenshot | None = GREY, **changes: Any) -> Turn:
    drawn = random_trajectory("a", 1).turns[0]
    return replace(drawn, **{"observation": Observation(screenshot), "action": Type("x"), "error": None, **changes})


def probe(path: Path) -> dict[str, Any]:
    """ffprobe's word on the one stream."""
    command = ["ffprobe", "-v", "error", "-of", "json", "-show_streams", "-show_format", str(path)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    (stream,) = told["streams"]
    assert "mp4" in told["format"]["format_name"]
    return {**stream, "duration": float(told["format"]["duration"])}


def pictures(path: Path) -> np.ndarray:
    """One from the middle of each second, (turns, height, width, 3)."""
    told = probe(path)
    picked = ["-vf", "select=eq(mod(n\\,10)\\,5)", "-vsync", "0", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(["ffmpeg", "-v", "error", "-i", str(path), *picked], check=True, capture_output=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, told["height"], told["width"], 3)


@pytest.mark.parametrize(
    ("size", "screen"), [((160, 128), (640, 512)), ((1281, 721), (1282, 722)), ((16, 400), (640, 400))]
)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_film_is_as_large_as_the_screen_and_a_second_a_turn(
    tmp_path: Path, size: tuple[int, int], screen: tuple[int, int], turns: int
) -> None:
    path = tmp_path / "film.mp4"
    write_film(random_trajectory("some-id", turns, size), path)
    told = probe(path)
    assert (told["codec_name"], told["pix_fmt"]) == ("h264", "yuv420p")
    assert told["width"] == screen[0]
    assert screen[1] < told["height"] < 1.2 * screen[1]
    assert told["duration"] == pytest.approx(turns, abs=0.11)
    assert [each.name for each in tmp_path.iterdir()] == ["film.mp4"]


def test_every_turn_has_its_second_with_the_click_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    write_film(playing(turn(), turn(action=Click(120, 40)), turn(None)), path)
    typed, clicked, blind = pictures(path)[:, :512].astype(int)
    assert np.abs(typed - 90).max() < 12, "nothing is drawn where nobody clicked"
    marked = np.argwhere(np.abs(clicked - 90).max(axis=-1) > 60)
    assert np.abs(marked.mean(axis=0) - (160, 480)).max() < 3, "at 4 times 40, 4 times 120"
    assert np.abs(blind - (48, 51, 58)).max() < 12


def test_what_was_done_stands_below(tmp_path: Path) -> None:
    """The same screen, other words: the rows below differ, and a failed action is red."""
    path = tmp_path / "film.mp4"
    failed = turn(error="The key is unknown.")
    write_film(playing(turn(), turn(action=Type("y" * 100_000)), failed), path)
    below = pictures(path)[:, 512:].astype(int)
    first, long, wrong = below
    assert (np.abs(first - long).max(axis=-1) > 60).sum() > 200
    red = wrong[..., 0] - wrong[..., 2]
    assert red.max() > 80
    assert (first[..., 0] - first[..., 2]).max() < 40


def test_screens_of_other_sizes_fit_in(tmp_path: Path) -> None:
    small = Screenshot.from_array(np.full((100, 100, 3), 200, np.uint8))
    large = Screenshot.from_array(np.full((700, 900, 3), 200, np.uint8))
    write_film(playing(turn(small), turn(large)), tmp_path / "film.mp4")
    assert probe(tmp_path / "film.mp4")["width"] == 900


def test_without_ffmpeg_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="run `apt-get install ffmpeg`"):
        write_film(playing(turn()), tmp_path / "film.mp4")


def test_an_encoder_that_fails_is_quoted_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "ffmpeg"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nfor last; do :; done\necho half > $last\necho Unknown encoder >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(StoreError, match="ffmpeg could not make the film: Unknown encoder"):
        write_film(playing(turn()), out / "film.mp4")
    assert list(out.iterdir()) == []


def test_what_cannot_be_filmed_is_one_sentence_and_leaves_the_old_film(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_text("old")
    with pytest.raises(StoreError, match="has no turns"):
        write_film(playing(), path)
    with pytest.raises(CorruptTrajectoryError, match="turn 2 of trajectory 'some-id' is damaged"):
        write_film(playing(turn(), turn(Screenshot(b"\x89PNG not really", 160, 128, "png"))), path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["film.mp4"]
