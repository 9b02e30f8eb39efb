"""The nouns: frozen, and screenshots that keep their pixels through any lossless codec."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel import types
from flywheel.testing import random_trajectory
from flywheel.types import Screenshot, Size, Trajectory


def pixels(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@settings(deadline=None, max_examples=40)
@given(width=st.integers(1, 50), height=st.integers(1, 50), seed=st.integers(0, 99))
def test_pixels_survive_every_lossless_codec(width: int, height: int, seed: int) -> None:
    screen = pixels(width, height, seed)
    raw = Screenshot.from_array(screen)
    assert (raw.array() == screen).all()
    assert raw.size == Size(width, height)
    for codec in ("png", "webp"):
        encoded = raw.encode(codec)
        assert (encoded.array() == screen).all()
        assert (encoded.codec, encoded.size) == (codec, raw.size)
        assert encoded.encode("png") is encoded
        assert (np.asarray(encoded.image()) == screen).all()


def test_the_hash_is_that_of_the_bytes() -> None:
    shot = Screenshot.from_array(pixels(4, 3))
    assert shot.sha256 == hashlib.sha256(shot.data).hexdigest()
    assert shot.encode().sha256 != shot.sha256
    assert shot.encode().sha256 == shot.encode().sha256


@pytest.mark.parametrize("codec", ["png", "webp"])
def test_truncated_bytes_are_an_os_error(codec: str) -> None:
    shot = Screenshot.from_array(pixels(40, 30)).encode(codec)  # type: ignore[arg-type]
    cut = dataclasses.replace(shot, data=shot.data[: len(shot.data) // 2])
    with pytest.raises(OSError, match=r"truncated|decoder|identify"):
        cut.image()


def test_all_nouns_are_frozen_and_slotted() -> None:
    nouns = [noun for noun in vars(types).values() if dataclasses.is_dataclass(noun) and isinstance(noun, type)]
    assert len(nouns) >= 18
    for noun in nouns:
        assert noun.__dataclass_params__.frozen, noun  # type: ignore[attr-defined]
        assert "__slots__" in vars(noun), noun


@pytest.mark.parametrize(("reward", "success"), [(None, False), (0.0, False), (0.49, False), (0.5, True), (1.0, True)])
def test_success_is_by_the_task_reward_alone(reward: float | None, success: bool) -> None:
    played: Trajectory = random_trajectory("t", 1, task_reward=reward, shaped_reward=9.0)
    assert played.success is success
