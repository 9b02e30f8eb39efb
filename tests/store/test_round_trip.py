"""What is read is what was published, live and sealed."""

import io
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flywheel.errors import StoreError
from flywheel.store.codec import action_from_json, action_to_json
from flywheel.store.images import encode_png
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_action, random_trajectory
from flywheel.types import ACTIONS, Observation, PolicyRef, Screenshot, Size, Task, Trajectory, Turn


@pytest.mark.parametrize("sealed", [False, True], ids=["live", "sealed"])
@pytest.mark.parametrize("codec", ["raw", "png", "webp"])
def test_read_returns_what_was_published(store, assert_same, codec, sealed):
    published = [random_trajectory(f"episode-{n}", n, (97, 61), codec=codec) for n in range(6)]
    for trajectory in published:
        assert store.publish(trajectory, partition="iter-01") == trajectory.id
    if sealed:
        assert store.seal("iter-01", 1, 6).episodes == 6
    for trajectory in published:
        assert_same(store.read(trajectory.id), trajectory)
        if codec != "raw":
            assert store.read(trajectory.id) == trajectory


@pytest.mark.parametrize("sealed", [False, True], ids=["live", "sealed"])
def test_bulk_read_is_in_order_of_id_and_filtered(store, assert_same, sealed):
    published = {name: random_trajectory(name, 3, (40, 30)) for name in ("b", "c", "a", "d/e", "ü 1")}
    for trajectory in published.values():
        store.publish(trajectory, partition="p")
    if sealed:
        store.seal("p", 1, 5)
    assert store.ids("p") == sorted(published)
    assert store.trajectories("p") == [published[name] for name in sorted(published)]
    successes = [name for name in sorted(published) if published[name].success]
    failures = [name for name in sorted(published) if not published[name].success]
    assert successes
    assert failures
    assert store.ids("p", success=True) == successes
    assert [t.id for t in store.iter("p", success=False)] == failures
    assert [t.id for t in store.iter("p", ids=["c", "a", "nobody"])] == ["a", "c"]
    assert store.trajectories("p", ids=["d/e"]) == [published["d/e"]]


@pytest.mark.parametrize("sealed", [False, True], ids=["live", "sealed"])
def test_every_field_survives(store, sealed):
    screenshot = random_trajectory("x", 1, (20, 20)).turns[0].observation.screenshot
    unread = Turn(
        observation=Observation(None, "<tree>" * 20_000, "$ ls\n", "clicked"),
        text="\x00 not an action ☃ \U0001f600",
        action=None,
        error="Cannot read it.",
        finish_reason="length",
        fallback=True,
        executed=False,
        logprobs=(-0.1, -math.pi, 0.0),
        completion_ids=(1, 2, 2**31 - 1),
    )
    trajectory = Trajectory(
        id="t",
        task=Task("task", "", "os", ({"a": [1, {"b": None}]},), {"func": ["x"]}, raw={"ü": 1.5}, infeasible=True),
        policy=PolicyRef("base", "hub/model"),
        turns=(unread, replace(unread, observation=Observation(screenshot), image_grid=(1, 2, 3))),
        outcome="failed",
        stop_reason="error",
        task_reward=None,
        failure="evaluator",
        error="The checker failed.",
        reward_terms={},
        seed=2**63 - 1,
        experiment="other",
        started_at=time.time(),
    )
    store.publish(trajectory, partition="p", attempt=3)
    if sealed:
        store.seal("p", 3, 1, "other")
    assert store.read("t") == trajectory


def test_partition_whose_trajectories_have_no_turns(store):
    published = [random_trajectory(name, 0) for name in "abc"]
    store.publish_many(published, partition="p")
    assert store.trajectories("p") == published
    store.seal("p", 1, 3)
    assert store.trajectories("p") == published
    assert store.connect().execute("SELECT count(*) FROM steps").fetchall() == [(0,)]


def test_row_groups_hold_whole_episodes(store):
    """Lengths that do not divide the size of a row group, empty ones and one longer than it among them."""
    lengths = [3, 0, 300, 5, 0, 250, 7, 1, 0]
    small = random_trajectory("small", 1, (8, 8)).turns[0]
    published = [replace(random_trajectory(f"{n}", 0), turns=(small,) * length) for n, length in enumerate(lengths)]
    store.publish_many(published, partition="p")
    store.seal("p", 1, len(lengths))
    assert store.trajectories("p") == published
    assert [len(store.read(str(n)).turns) for n in range(len(lengths))] == lengths


def test_encoded_screenshots_keep_their_bytes(store):
    jpeg = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 10, 10)).save(jpeg, "JPEG")
    turn = random_trajectory("x", 1).turns[0]
    screenshot = Screenshot(jpeg.getvalue(), 30, 20, "jpeg")
    trajectory = replace(random_trajectory("t", 0), turns=(replace(turn, observation=Observation(screenshot)),))
    store.publish(trajectory, partition="p")
    assert store.read("t").turns[0].observation.screenshot == screenshot


def test_identical_screenshots_of_an_episode_are_stored_once(store):
    once = random_trajectory("t", 1, (300, 200), codec="raw")
    store.publish(once, partition="once")
    store.publish(replace(once, turns=once.turns * 50), partition="often")
    assert store.seal("once", 1, 1).segments[0].bytes == store.seal("often", 1, 1).segments[0].bytes


@pytest.mark.parametrize("size", [(1, 1), (160, 128), (7, 33)])
def test_png_has_the_same_pixels(size):
    pixels_HWC = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    raw = Screenshot.from_array(pixels_HWC)
    assert np.array_equal(encode_png(raw).array(), pixels_HWC)
    assert encode_png(raw).size == Size(*size)


def test_webp_store_is_lossless(tmp_path, assert_same):
    store = TrajectoryStore(tmp_path, codec="webp")
    trajectory = random_trajectory("t", 2, (50, 40), codec="raw")
    store.publish(trajectory, partition="p")
    assert store.read("t").turns[0].observation.screenshot.codec == "webp"
    assert_same(store.read("t"), trajectory)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.text())
def test_actions_survive_json(seed, text):
    action = random_action(np.random.default_rng(seed), Size(1920, 1080))
    assert action_from_json(action_to_json(action)) == action
    for tag in ("type", "answer", "code"):
        written = ACTIONS[tag](text)
        assert action_from_json(action_to_json(written)) == written


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"x": 1}', '{"type": "fly"}', '{"type": "click"}', '{"type": "click", "x": 1, "y": 2, "z": 3}'],
)
def test_unknown_actions_are_refused(text):
    with pytest.raises(StoreError, match="The action"):
        action_from_json(text)


def test_other_objects_are_no_actions():
    with pytest.raises(StoreError, match="not an action"):
        action_to_json(Size(1, 2))


def test_random_trajectory_depends_on_nothing_but_its_arguments():
    assert random_trajectory("a", 3, (64, 48)) == random_trajectory("a", 3, (64, 48))
    assert random_trajectory("a", 3, (64, 48)) != random_trajectory("b", 3, (64, 48))
    assert random_trajectory("a", 2, Size(64, 48)).turns[1].observation.screenshot.size == (64, 48)


def test_a_partition_is_read_fast(tmp_path):
    """640 episodes of 4 turns; the bound is ten times what it takes, so that a busy machine passes."""
    store = TrajectoryStore(tmp_path, fsync=False)
    one = random_trajectory("one", 4, (160, 128))
    store.publish_many([replace(one, id=f"{n:04d}") for n in range(640)], partition="p")
    store.seal("p", 1, 640)
    began = time.process_time()
    assert len(store.trajectories("p")) == 640
    assert time.process_time() - began < 1.5
