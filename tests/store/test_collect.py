"""Garbage collection removes what nobody can need, and nothing else."""

import os
import time

from flywheel.testing import random_trajectory


def make(name):
    return random_trajectory(name, 2, (24, 16))


def files(store, folder):
    return sorted(path for path in (store.root / folder).rglob("*") if path.is_file())


def test_sealed_live_episodes_go_after_the_grace_period(store):
    store.publish_many([make("a"), make("b")], partition="p")
    store.seal("p", 1, 2)
    snapshot = store.connect()
    assert store.gc(3600).files == 0
    collected = store.gc(0)
    assert collected.files == 2
    assert collected.bytes > 0
    assert files(store, "live") == []
    assert store.trajectories("p") == [make("a"), make("b")]
    assert snapshot.execute("SELECT count(*) FROM steps").fetchall() == [(4,)]
    assert store.begin("p") == 2, "ordinals are not used again"


def test_copies_of_live_episodes_go_with_them(store):
    store.publish(make("a"), partition="p")
    snapshot = store.connect()
    store.seal("p", 1, 1)
    assert store.gc(3600).files == 0
    assert snapshot.execute("SELECT count(*) FROM steps").fetchall() == [(2,)]
    assert store.gc(0).files == 3
    assert files(store, "mirror") == []


def test_the_grace_period_counts_from_the_seal(store):
    """A reader may have opened the live files until then, however old they are."""
    store.publish(make("a"), partition="p")
    long_ago = time.time() - 10_000
    for path in [*files(store, "live"), store.root / "live/default/p/1", store.root / "live/default/p"]:
        os.utime(path, (long_ago, long_ago))
    store.seal("p", 1, 1)
    assert store.gc(60).files == 0
    assert store.gc(0).files == 1


def test_replaced_segments_and_abandoned_staging_go(store):
    for attempt, name in ((1, "a"), (2, "b")):
        store.publish(make(name), partition="p", attempt=attempt)
        store.seal("p", attempt, 1)
    (store.root / "tmp" / "left-by-a-killed-writer").write_bytes(b"x" * 1000)
    store.gc(0)
    assert len(files(store, "seg")) == 3
    assert files(store, "tmp") == []
    assert store.trajectories("p") == [make("b")]


def test_live_partitions_and_their_newest_attempt_stay(store):
    store.publish(make("a"), partition="p", attempt=1)
    store.publish(make("b"), partition="p", attempt=2)
    store.publish(make("c"), partition="q")
    assert store.gc(0).files == 1
    assert store.ids("p") == ["b"]
    assert store.ids("q") == ["c"]


def test_a_partition_that_is_held_is_left_alone(store):
    store.publish(make("a"), partition="p", attempt=1)
    store.begin("p")
    assert store.gc(0).files == 0
    store.release("p")
    assert store.gc(0).files == 1
