from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flywheel.store.store import TrajectoryStore
from flywheel.types import Trajectory


@pytest.fixture
def store(tmp_path: Path) -> TrajectoryStore:
    return TrajectoryStore(tmp_path / "store")


@pytest.fixture
def assert_same():
    """Equal but for the encoding of screenshots, which must show the same pixels."""

    def check(read: Trajectory, published: Trajectory) -> None:
        assert _without_images(read) == _without_images(published)
        for ours, theirs in zip(read.turns, published.turns, strict=True):
            if theirs.observation.screenshot is None:
                assert ours.observation.screenshot is None
            else:
                assert ours.observation.screenshot.size == theirs.observation.screenshot.size
                assert np.array_equal(ours.observation.screenshot.array(), theirs.observation.screenshot.array())

    return check


def _without_images(trajectory: Trajectory) -> Trajectory:
    turns = tuple(replace(turn, observation=replace(turn.observation, screenshot=None)) for turn in trajectory.turns)
    return replace(trajectory, turns=turns)
