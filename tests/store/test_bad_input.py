"""Full disks, damaged files, foreign folders: one sentence each, and nothing lost."""

import io
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.errors import CorruptTrajectoryError, PartitionBusyError, StoreError, StoreFullError
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from flywheel.types import Observation, Screenshot
from tests.limits import files_up_to

PICTURES = (400, 300)


def make(name, turns=3, size=PICTURES, **fields):
    return random_trajectory(name, turns, size, **fields)


def sentence(raised):
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.fixture(params=["small file system", "file size limit"])
def disk(request, tmp_path):
    """(folder, context in which it is full).

    A mount of 1 MB where this user may mount; otherwise, and as the second case of those who may, a limit of 16 kB to
    a file, which fails in the middle of a write for any user. The limit holds for all that this process writes, the
    report of the tests included: hence a context around the one call that is to fail.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    small = request.param == "small file system" and os.geteuid() == 0
    small = small and subprocess.run(mount, capture_output=True, check=False).returncode == 0

    @contextmanager
    def full():
        if small:
            room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            (folder / "ballast").write_bytes(bytes(max(0, room - 40_000)))
            yield
            (folder / "ballast").unlink()
        else:
            with files_up_to(16_000):
                yield

    yield folder, full
    if small:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_and_keeps_what_was_acknowledged(disk):
    folder, full = disk
    store = TrajectoryStore(folder / "store")
    acknowledged = [store.publish(make(f"{n:03d}", 0), partition="p") for n in range(3)]
    with full(), pytest.raises(StoreFullError) as raised:
        acknowledged.extend(store.publish(make(f"{n:03d}"), partition="p") for n in range(3, 100))
    assert re.match(rf"Cannot publish trajectory '{len(acknowledged):03d}': no space is left", sentence(raised))
    assert list((store.root / "tmp").iterdir()) == []
    assert [trajectory.id for trajectory in store.iter("p")] == acknowledged


def test_a_seal_on_a_full_disk_leaves_the_partition_live(disk):
    folder, full = disk
    store = TrajectoryStore(folder / "store")
    published = [make(f"{n:02d}", 1) for n in range(16)]
    store.publish_many(published, partition="p")
    with full(), pytest.raises(StoreFullError) as raised:
        store.seal("p", 1, 16)
    assert "Cannot seal partition 'p'" in sentence(raised)
    assert store.head("p") is None
    assert [path for path in (store.root / "seg").rglob("*") if path.is_file()] == []
    assert store.trajectories("p") == published
    assert store.seal("p", 1, 16).episodes == 16


@pytest.mark.parametrize("codec", ["raw", "png", "webp", "jpeg"])
def test_truncated_screenshots_are_not_let_in(store, codec):
    whole = make("x", 1, codec="raw").turns[0].observation.screenshot
    if codec == "jpeg":
        out = io.BytesIO()
        whole.image().save(out, "JPEG")
        whole = Screenshot(out.getvalue(), *PICTURES, "jpeg")
    elif codec != "raw":
        whole = whole.encode(codec)
    cut = replace(whole, data=whole.data[: len(whole.data) * 2 // 3])
    turn = make("x", 1).turns[0]
    for name, screenshot in (("whole", whole), ("cut", cut)):
        trajectory = replace(make(name, 0), turns=(replace(turn, observation=Observation(screenshot)),))
        if screenshot is whole:
            store.publish(trajectory, partition="p")
        else:
            with pytest.raises(
                StoreError, match=rf"A {codec} screenshot of 400x300 is truncated at \d+ bytes"
            ) as raised:
                store.publish(trajectory, partition="p")
            sentence(raised)
    assert store.ids("p") == ["whole"]


def stored_file(store, start):
    [path] = [
        path
        for path in store.root.rglob(f"{start}*")
        if path.is_file() and path.suffix in (".live", ".parquet", ".pack")
    ]
    return path


@pytest.mark.parametrize("start", ["live.", "steps-", "episodes-", "blobs-"])
def test_damage_anywhere_is_found_and_never_returned_as_data(store, start):
    published = make("live.", 2, (60, 40))
    store.publish(published, partition="p")
    if start != "live.":
        store.seal("p", 1, 1)
    path = stored_file(store, start)
    data = path.read_bytes()
    messages = []
    for flip in (0xFF, 0x01):
        for position in range(0, len(data), max(1, len(data) // 100)):
            path.write_bytes(data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :])
            try:
                assert store.read("live.") == published, f"byte {position} changed what is read"
            except CorruptTrajectoryError as error:
                messages.append(str(error))
    assert len(messages) > 30
    assert all(str(path) in message and "\n" not in message for message in messages)
    path.write_bytes(data)
    assert store.read("live.") == published


@pytest.mark.parametrize("left", [0, 5, 1000])
def test_truncated_files_are_found(store, left):
    store.publish(make("a"), partition="p")
    store.seal("p", 1, 1)
    for path in (p for p in (store.root / "seg").rglob("*") if p.is_file()):
        data = path.read_bytes()
        path.write_bytes(data[:left])
        with pytest.raises(CorruptTrajectoryError, match=re.escape(path.name)) as raised:
            store.read("a")
        sentence(raised)
        path.unlink()
        with pytest.raises(CorruptTrajectoryError, match="is missing") as raised:
            store.read("a")
        sentence(raised)
        path.write_bytes(data)


def test_damaged_live_episodes_are_not_sealed_in(store):
    store.publish_many([make("a"), make("b")], partition="p")
    path = store.root / "live/default/p/1/b.live"
    data = bytearray(path.read_bytes())
    start = data.index(b"\x89PNG") + 100
    data[start] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptTrajectoryError, match=re.escape("b.live")):
        store.seal("p", 1, 2)
    assert store.head("p") is None
    assert [p for p in (store.root / "seg").rglob("*") if p.is_file()] == []
    assert store.read("a") == make("a")


def test_unknown_trajectories_and_partitions(store):
    store.publish(make("a"), partition="iter-01")
    with pytest.raises(StoreError, match=r"There is no trajectory 'b' in .*; `flywheel trajectories` lists") as raised:
        store.read("b")
    sentence(raised)
    with pytest.raises(
        StoreError, match=r"no partition 'iter-02' in experiment 'default' \(known: iter-01\)"
    ) as raised:
        store.trajectories("iter-02")
    sentence(raised)
    with pytest.raises(StoreError, match="known: none yet"):
        store.ids("iter-01", experiment="other")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", ".hidden", "x" * 200, "sp ace", "a\n"])
def test_names_that_are_no_folder_names(store, name):
    for call in (
        lambda: store.publish(make("a"), partition=name),
        lambda: store.publish(make("a", experiment=name), partition="p"),
        lambda: store.begin(name),
        lambda: store.seal("p", 1, None, name),
    ):
        with pytest.raises(StoreError, match="cannot be a folder name"):
            call()
    assert not (store.root / "live").exists()


def test_attempts_count_from_one(store):
    for call in (lambda: store.publish(make("a"), partition="p", attempt=0), lambda: store.seal("p", 0, None)):
        with pytest.raises(StoreError, match="Attempt 0 does not exist"):
            call()


@pytest.mark.parametrize("name", ["..", "a/../../b", "%2E", "ü☃", " ", "x" * 240, "."])
def test_any_id_is_kept_inside_the_partition(store, name):
    store.publish(make(name, 0), partition="p")
    assert store.read(name).id == name
    assert store.ids("p") == [name]
    assert len(list((store.root / "live/default/p/1").iterdir())) == 1


@pytest.mark.parametrize("name", ["", "x" * 250])
def test_ids_that_cannot_be_stored(store, name):
    with pytest.raises(StoreError, match="use 1 to 240"):
        store.publish(make(name, 0), partition="p")


@pytest.mark.parametrize(
    "fields", [{"seed": 2**70}, {"n": 1}, {"task_reward": "high"}], ids=["too large", "no JSON", "not a number"]
)
def test_values_that_cannot_be_stored(store, fields):
    trajectory = make("a", 1)
    if "n" in fields:
        trajectory = replace(trajectory, task=replace(trajectory.task, raw={"n": object()}))
    else:
        object.__setattr__(trajectory, *next(iter(fields.items())))
    with pytest.raises((StoreError, TypeError)):
        store.publish(trajectory, partition="p")
    assert "p" not in store.partitions()


def test_a_store_of_another_format_is_refused(store):
    (store.root / "FORMAT.json").write_text('{"version": 99}')
    with pytest.raises(StoreError, match="has format 99 and this flywheel reads format 2") as raised:
        TrajectoryStore(store.root)
    sentence(raised)
    (store.root / "FORMAT.json").write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        TrajectoryStore(store.root)


def test_a_root_that_cannot_be_a_store(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot open the trajectory store: ") as raised:
        TrajectoryStore(tmp_path / "file" / "store")
    sentence(raised)


def test_a_damaged_head_is_named(store):
    store.publish(make("a"), partition="p")
    store.seal("p", 1, 1)
    path = store.root / "heads/default/p.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(StoreError, match=re.escape(str(path))) as raised:
        store.read("a")
    sentence(raised)


def test_processes_without_the_lock_get_a_sentence(store):
    store.begin("p")
    code = """
import sys
from flywheel.errors import FlywheelError
from flywheel.store.store import TrajectoryStore
try:
    TrajectoryStore(sys.argv[1]).begin("p")
except FlywheelError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(store.root)], capture_output=True, text=True, check=True)
    expected = f"Partition 'p' is held by process {os.getpid()}; wait for it to finish or stop it."
    assert done.stdout == f"{PartitionBusyError.__name__} {expected}\n"
    assert Path(store.root / "live/default/p/1").is_dir()
