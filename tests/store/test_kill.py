"""kill -9 at random moments: nothing acknowledged is lost, nothing half is visible.

A warm process forks a child for each round, so that a round costs milliseconds, and kills it. The child begins,
publishes and seals, and says through a pipe, which survives it, what was acknowledged. Another process reads all the
while.
`FLYWHEEL_KILL_ROUNDS` changes how many rounds are played.
"""

import os
import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from flywheel.testing import random_trajectory

EPISODES = 4
SHAPES = [random_trajectory(f"shape-{n}", n % 3, (48, 32)) for n in range(EPISODES)]
ROUNDS = int(os.environ.get("FLYWHEEL_KILL_ROUNDS", "200"))

WRITER = """
import os, select, signal, sys
from dataclasses import replace
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory

root, episodes = sys.argv[1], int(sys.argv[2])
shapes = [random_trajectory(f"shape-{n}", n % 3, (48, 32)) for n in range(episodes)]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def work(round_, partition):
    store = TrajectoryStore(root)
    attempt = store.begin(partition)
    say("begun", attempt)
    for number, shape in enumerate(shapes):
        say("published", store.publish(replace(shape, id=f"{round_}-{number}"), partition=partition, attempt=attempt))
    store.seal(partition, attempt, episodes)
    say("sealed", attempt)

work("warm", "warm-up")
for line in sys.stdin:
    round_, partition, seconds = line.split()
    child = os.fork()
    if child == 0:
        try:
            work(round_, partition)
        except BaseException as error:
            say("failed", repr(error))
        os._exit(0)
    handle = os.pidfd_open(child)
    select.select([handle], [], [], float(seconds))
    os.close(handle)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    say("over")
"""

READER = """
import sys, time
from flywheel.store.store import TrajectoryStore

root, episodes = sys.argv[1], int(sys.argv[2])
store = TrajectoryStore(root)
turns = sum(n % 3 for n in range(episodes))
while True:
    with store.connect() as connection:
        query = "SELECT partition, count(DISTINCT attempt), count(*), sum(n_steps) FROM episodes GROUP BY ALL"
        rows = connection.execute(query).fetchall()
        steps = dict(connection.execute("SELECT partition, count(*) FROM steps GROUP BY ALL").fetchall())
    for partition, attempts, count, expected in rows:
        assert attempts == 1 and count <= episodes and steps.get(partition, 0) == expected, (rows, steps)
    sealed = [partition for partition in store.partitions() if store.head(partition)]
    for partition in sealed[-3:]:
        read = store.trajectories(partition)
        assert len(read) == episodes and sum(len(t.turns) for t in read) == turns, partition
    time.sleep(0.2)
"""


@pytest.fixture
def processes(store):
    """The warm writer and the reader."""
    arguments = [str(store.root), str(EPISODES)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with (
        subprocess.Popen([sys.executable, "-c", WRITER, *arguments], **pipes) as writer,
        subprocess.Popen([sys.executable, "-c", READER, *arguments], **pipes, stderr=subprocess.PIPE) as reader,
    ):
        while writer.stdout.readline().split()[0] != "sealed":
            pass
        yield writer, reader
        writer.kill()
        reader.kill()


def play(writer, number, partition, seconds):
    """One round; what was acknowledged, as {"begun": [...], "published": [...], "sealed": [...]}."""
    writer.stdin.write(f"{number} {partition} {seconds}\n")
    said = {"begun": [], "published": [], "sealed": []}
    while (words := writer.stdout.readline().split(maxsplit=1))[0] != "over":
        assert words[0] != "failed", words
        said[words[0]].append(words[1].strip())
    return said


def expected_trajectories(number):
    return [replace(shape, id=f"{number}-{n}") for n, shape in enumerate(SHAPES)]


def check(store, partition, number, said, sealed_by):
    """What must be visible after a round, from what was acknowledged in it and in the one before."""
    head = store.head(partition)
    attempt = int(said["begun"][0]) if said["begun"] else None
    if said["sealed"]:
        assert head is not None
        assert head.attempt == attempt
    if head is not None:
        made_by = number if head.attempt == attempt else sealed_by[partition]
        sealed_by[partition] = made_by
        assert store.trajectories(partition) == expected_trajectories(made_by)
    elif said["begun"]:
        whole = {trajectory.id: trajectory for trajectory in expected_trajectories(number)}
        visible = store.trajectories(partition)
        assert {trajectory.id for trajectory in visible} >= set(said["published"])
        assert all(trajectory == whole[trajectory.id] for trajectory in visible)


def test_kill_9(store, processes):
    writer, reader = processes
    rng = random.Random(0)
    began = time.monotonic()
    whole = play(writer, "calm", "calm", 60)
    length = time.monotonic() - began  # half of it goes into the catalog: fewer rounds are cut there
    assert len(whole["sealed"]) == 1
    sealed_by: dict[str, int] = {}
    cut = {"begun": 0, "published": 0, "sealed": 0, "between": 0}
    for number in range(ROUNDS):
        partition = f"p{number // 2:03d}"
        latest = 1.3 * length if number % 8 == 0 else min(0.5 * length, 0.1)
        said = play(writer, number, partition, rng.uniform(0, latest))
        check(store, partition, number, said, sealed_by)
        for word in ("begun", "published", "sealed"):
            cut[word] += len(said[word])
        cut["between"] += 0 < len(said["published"]) < EPISODES
    assert reader.poll() is None, reader.stderr.read()
    reader.kill()
    reader.wait()
    assert cut["between"] > ROUNDS // 50, f"too few rounds were cut inside: {cut}"
    assert sealed_by, f"no round got as far as its seal: {cut}"
    store.gc(0)
    assert list((store.root / "tmp").iterdir()) == []
    for partition, number in sealed_by.items():
        assert store.trajectories(partition) == expected_trajectories(number)
