"""Sealing, attempts and locks: one atomic step, one owner, nothing lost in between."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from flywheel.errors import PartitionBusyError, StoreError
from flywheel.store import seal as sealing
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory

HOLDER = """
import sys, time
from flywheel.store.store import TrajectoryStore
TrajectoryStore(sys.argv[1]).begin("iter-01")
print("held", flush=True)
time.sleep(60)
"""


def make(name, **fields):
    return random_trajectory(name, 2, (24, 16), **fields)


@pytest.fixture
def holder(store):
    """Another process that holds the partition `iter-01`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.root)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_seal_checks_the_number_of_episodes(store):
    for name in "abc":
        store.publish(make(name), partition="p")
    with pytest.raises(StoreError, match=r"holds 3 of 5 episodes \(2 missing\)"):
        store.seal("p", 1, 5)
    with pytest.raises(StoreError, match=r"holds 3 of 2 episodes \(1 too many\)"):
        store.seal("p", 1, 2)
    assert store.head("p") is None
    head = store.seal("p", 1, 3)
    assert (head.episodes, head.steps, head.attempt, head.state) == (3, 6, 1, "sealed")
    assert store.head("p") == head


def test_sealing_again_gives_the_same_head(store):
    store.publish(make("a"), partition="p")
    head = store.seal("p", 1, 1)
    assert store.seal("p", 1, 1) == head
    with pytest.raises(StoreError, match="1 missing"):
        store.seal("p", 1, 2)


def test_an_unknown_attempt_is_not_sealed(store):
    with pytest.raises(StoreError, match="no attempt 2 to seal"):
        store.seal("p", 2, None)


def test_publishing_twice_changes_nothing(store):
    store.publish(make("a"), partition="p")
    store.publish(make("a", task_reward=None), partition="p")
    assert store.read("a") == make("a")
    store.seal("p", 1, 1)
    assert store.publish(make("a"), partition="p") == "a"
    assert list((store.root / "tmp").iterdir()) == []


def test_what_comes_after_the_seal_is_refused(store):
    store.publish(make("a"), partition="p", attempt=2)
    store.seal("p", 2, 1)
    for attempt in (1, 2):
        with pytest.raises(StoreError, match=f"'late' came too late for attempt {attempt}"):
            store.publish(make("late"), partition="p", attempt=attempt)
    assert store.ids("p") == ["a"]
    assert list((store.root / "tmp").iterdir()) == []


def test_a_new_attempt_replaces_the_partition_when_it_is_sealed(store):
    first = store.begin("p")
    store.publish_many([make("a"), make("b")], partition="p", attempt=first)
    store.seal("p", first, 2)
    before = store.connect()
    second = store.begin("p")
    assert (first, second) == (1, 2)
    store.publish(make("c"), partition="p", attempt=second)
    assert store.ids("p") == ["a", "b"], "a partition that is being made again still shows the old content"
    store.seal("p", second, 1)
    assert store.ids("p") == ["c"]
    assert store.connect().execute("SELECT episode_id FROM episodes").fetchall() == [("c",)]
    assert before.execute("SELECT episode_id FROM episodes ORDER BY 1").fetchall() == [("a",), ("b",)]
    with pytest.raises(StoreError, match="sealed at attempt 2, so attempt 1 is out of date"):
        store.seal("p", 1, 2)


def test_an_attempt_without_episodes_may_be_sealed(store):
    attempt = store.begin("p")
    assert store.seal("p", attempt, 0).segments == ()
    assert store.trajectories("p") == []
    assert store.connect().execute("SELECT count(*) FROM steps").fetchall() == [(0,)]


def test_large_partitions_become_several_segments(store, monkeypatch):
    monkeypatch.setattr(sealing, "SEGMENT_BYTES", 20_000)
    published = [make(f"{n:02d}") for n in range(12)]
    store.publish_many(published, partition="p")
    head = store.seal("p", 1, 12)
    assert len(head.segments) > 2
    assert store.trajectories("p") == published
    assert store.read("07") == published[7]
    packs = store.connect().execute("SELECT count(DISTINCT image_pack) FROM steps").fetchall()
    assert packs == [(len(head.segments),)]


def test_experiments_do_not_see_each_other(store):
    store.publish(make("a"), partition="p")
    store.publish(make("a", experiment="other", iteration=7), partition="p")
    store.seal("p", 1, 1, "other")
    assert store.experiments() == ["default", "other"]
    assert store.head("p") is None
    assert store.head("p", "other").episodes == 1
    assert store.read("a", experiment="other").iteration == 7
    with pytest.raises(StoreError, match="'a' is in default/p and other/p; say which"):
        store.read("a")


def test_a_second_process_finds_the_partition_busy(store, holder):
    store.publish(make("a"), partition="iter-01")
    for call in (lambda: store.begin("iter-01"), lambda: store.seal("iter-01", 1, None)):
        with pytest.raises(PartitionBusyError, match=rf"'iter-01' is held by process {holder.pid}; wait"):
            call()
    assert store.begin("iter-02") == 1
    assert store.ids("iter-01") == ["a"], "workers of the owner publish without the lock, and readers never wait"


def test_the_lock_of_a_dead_process_does_not_block(store, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert store.begin("iter-01") == 2


def busy(store):
    """Whether another process finds the partition `p` held."""
    code = "import sys; from flywheel.store.store import TrajectoryStore; TrajectoryStore(sys.argv[1]).begin('p')"
    done = subprocess.run([sys.executable, "-c", code, str(store.root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "PartitionBusyError" in done.stderr
    return done.returncode != 0


def test_a_partition_is_held_until_it_is_sealed_or_released(store):
    attempt = TrajectoryStore(store.root).begin("p")
    with pytest.raises(StoreError, match="1 missing"):
        store.seal("p", attempt, 1)
    assert busy(store), "it belongs to the process, not to the object, and a failed seal keeps it"
    store.release("p")
    store.release("p")
    assert not busy(store)
    attempt = store.begin("p")
    TrajectoryStore(store.root).seal("p", attempt, 0)
    assert not busy(store)


def test_a_forked_child_does_not_own_what_its_parent_began(store):
    store.begin("p")
    child = os.fork()
    if child == 0:
        try:
            store.release("p")
            store.begin("p")
        except PartitionBusyError as error:
            os._exit(7 if str(os.getppid()) in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert busy(store)


def test_a_seal_waits_for_publishers_and_misses_nothing(store):
    """Publishers in threads race with the seal; whatever was acknowledged is in the head."""
    acknowledged, refused = [], []

    def publish(worker):
        for number in range(30):
            try:
                acknowledged.append(store.publish(make(f"{worker}-{number:02d}"), partition="p"))
            except StoreError:
                refused.append(number)

    threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 10:
        time.sleep(0.001)
    TrajectoryStore(store.root).seal("p", 1, None)
    for thread in threads:
        thread.join()
    assert refused
    assert store.ids("p") == sorted(acknowledged)


def test_a_writer_reads_its_own_attempt_before_it_is_sealed(store):
    store.publish(make("a", worker="first"), partition="p")
    store.seal("p", 1, 1)
    attempt = store.begin("p")
    store.publish(make("a", worker="second"), partition="p", attempt=attempt)
    assert [t.worker for t in store.iter("p")] == ["first"]
    assert [t.worker for t in store.iter("p", attempt=attempt)] == ["second"]
    assert [t.worker for t in store.iter("p", attempt=1)] == ["first"]
    with pytest.raises(StoreError, match="no partition 'p'"):
        next(store.iter("p", attempt=7))
