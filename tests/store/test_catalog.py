"""The views: their columns are the documented ones, and they show what is there."""

import math
from pathlib import Path

import duckdb
import pytest

from flywheel.errors import CorruptTrajectoryError, StoreFullError
from flywheel.store import catalog, mirror
from flywheel.store.schema import DERIVED, EPISODES, STEPS, duckdb_type, markdown
from flywheel.testing import random_trajectory
from flywheel.types import PolicyRef

DOCS = Path(__file__).parents[2] / "docs" / "store.md"
VIEWS = {"episodes": EPISODES, "steps": STEPS} | {view.name: view.columns for view in DERIVED}


def make(name, **fields):
    return random_trajectory(name, 2, (24, 16), **fields)


@pytest.mark.parametrize("state", ["empty", "live", "sealed", "both"])
def test_views_have_the_declared_columns_and_types(store, state):
    if state in ("sealed", "both"):
        store.publish(make("a"), partition="eval-1")
        store.seal("eval-1", 1, 1)
    if state in ("live", "both"):
        store.publish(make("b"), partition="eval-2")
    connection = store.connect()
    tables = connection.execute("SHOW TABLES").fetchall()
    assert sorted(name for (name,) in tables) == sorted(VIEWS)
    for view, columns in VIEWS.items():
        described = [row[:2] for row in connection.execute(f"DESCRIBE {view}").fetchall()]
        assert described == [(column.name, duckdb_type(column)) for column in columns]


def test_the_documentation_lists_exactly_these_columns():
    assert markdown() in DOCS.read_text(), "put the output of flywheel.store.schema.markdown() into docs/store.md"


def test_live_episodes_are_seen_at_once_and_a_connection_is_a_snapshot(store):
    def ids(connection):
        return [row[0] for row in connection.execute("SELECT episode_id FROM episodes ORDER BY 1").fetchall()]

    first = store.connect()
    store.publish(make("a"), partition="p")
    second = store.connect()
    store.seal("p", 1, 1)
    store.publish(make("b"), partition="q")
    third = store.connect()
    assert [ids(connection) for connection in (first, second, third)] == [[], ["a"], ["a", "b"]]


def test_steps_of_live_and_sealed_episodes_are_equal(store):
    trajectory = make("a")
    store.publish(trajectory, partition="p")
    where_it_lies = "EXCLUDE (image_pack, image_offset)"
    live = store.connect().execute(f"SELECT * {where_it_lies} FROM steps ORDER BY step").fetchall()
    store.seal("p", 1, 1)
    sealed = store.connect().execute(f"SELECT * {where_it_lies} FROM steps ORDER BY step").fetchall()
    assert live == sealed
    assert len(sealed) == 2


def test_sealed_images_lie_where_the_view_says(store):
    trajectory = make("a")
    store.publish_many([make("0"), trajectory], partition="p")
    store.seal("p", 1, 2)
    query = "SELECT image_pack, image_offset, image_length FROM steps WHERE episode_id = 'a' AND step = 1"
    [(pack, offset, length)] = store.connect().execute(query).fetchall()
    data = (store.root / pack).read_bytes()[offset : offset + length]
    assert data == trajectory.turns[1].observation.screenshot.data


def test_values_of_the_views(store):
    base, student = PolicyRef("base", "hub/base"), PolicyRef("iter-01", "runs/1", "base")
    rewards = {"a": 1.0, "b": 0.0, "c": 1.0, "d": None}
    for name, reward in rewards.items():
        failed = {"outcome": "failed", "failure": "setup"} if reward is None else {}
        task = make("same").task
        trajectory = make(name, task=task, task_reward=reward, policy=base, iteration=0, started_at=1.75e9, **failed)
        store.publish(trajectory, partition="eval-base")
    store.publish(make("e", policy=student, task_reward=1.0), partition="iter-01")
    connection = store.connect()
    query = "SELECT policy, parent, episodes, judged, solved, success_rate FROM policies ORDER BY policy"
    rows = connection.execute(query).fetchall()
    assert rows == [("base", None, 4, 3, 2, pytest.approx(2 / 3)), ("iter-01", "base", 1, 1, 1, 1.0)]
    query = (
        "SELECT partition, policy, split, family, episodes, judged, solved, success_rate, env_errors FROM eval_results"
    )
    task = make("same").task
    expected = ("eval-base", "base", task.split, task.family, 4, 3, 2, pytest.approx(2 / 3), 1)
    assert connection.execute(query).fetchall() == [expected]
    [(episodes, solved)] = connection.execute(
        "SELECT episodes, solved FROM tasks WHERE task_id = ?", [task.id]
    ).fetchall()
    assert (episodes, solved) >= (4, 2)
    query = "SELECT reward_terms['format'], epoch(started_at) FROM episodes WHERE episode_id = 'a'"
    assert connection.execute(query).fetchall() == [(pytest.approx(0.1), 1.75e9)]


def test_tokens_and_actions_can_be_asked_for(store):
    trajectory = make("a")
    store.publish(trajectory, partition="p")
    query = "SELECT len(completion_ids), list_sum(logprobs), action ->> 'type', action_type FROM steps ORDER BY step"
    for row, turn in zip(store.connect().execute(query).fetchall(), trajectory.turns, strict=True):
        assert row[:2] == (len(turn.completion_ids), pytest.approx(math.fsum(turn.logprobs)))
        assert row[2] == row[3]


def test_connections_are_read_only(store):
    connection = store.connect()
    for statement in ("CREATE TABLE t (a INT)", "DROP VIEW episodes", "DELETE FROM internal.catalog"):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)


def test_the_catalog_is_readable_by_older_tools(store):
    store.connect()
    with duckdb.connect(str(store.root / "catalog.duckdb"), read_only=True) as connection:
        [(tags,)] = connection.execute("SELECT tags FROM duckdb_databases() WHERE database_name = 'catalog'").fetchall()
    assert tags["storage_version"].startswith("v1.5")


@pytest.mark.parametrize("damage", ["missing", "garbage", "moved"])
def test_the_catalog_is_derived(store, tmp_path, damage):
    store.publish(make("a"), partition="p")
    store.seal("p", 1, 1)
    file = store.root / "catalog.duckdb"
    if damage == "missing":
        file.unlink()
    elif damage == "garbage":
        file.write_bytes(b"not a database" * 1000)
    else:
        store.root.rename(tmp_path / "moved 'elsewhere'")
        store = type(store)(tmp_path / "moved 'elsewhere'")
    assert store.connect().execute("SELECT episode_id FROM episodes").fetchall() == [("a",)]


def test_a_catalog_that_cannot_be_built_says_why(store, monkeypatch):
    def full(*_args):
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(catalog.duckdb, "connect", full)
    with pytest.raises(StoreFullError, match="Cannot rebuild"):
        store.connect()


def copies(store):
    return sorted(path.name for path in (store.root / "mirror").rglob("*.parquet"))


def test_each_live_episode_is_copied_for_sql_once(store):
    store.publish_many([make("a"), make("b")], partition="p")
    for _ in range(2):
        assert store.connect().execute("SELECT count(*) FROM steps").fetchall() == [(4,)]
        assert len(copies(store)) == 2
    store.publish(make("c"), partition="p")
    rows = store.connect().execute("SELECT episode_id, n_steps FROM episodes ORDER BY 1").fetchall()
    assert rows == [("a", 2), ("b", 2), ("c", 2)]
    assert len(copies(store)) == 4


@pytest.mark.parametrize("lost", ["episodes", "everything"])
def test_the_copies_are_derived(store, lost):
    """A copy counts from when its episodes appear: without them it is as good as not begun."""
    store.publish_many([make("a"), make("b")], partition="p")
    store.connect()
    for path in (store.root / "mirror").rglob("episodes-*" if lost == "episodes" else "*.parquet"):
        path.unlink()
    assert store.connect().execute("SELECT count(*) FROM steps").fetchall() == [(4,)]


def test_many_live_episodes_are_copied_in_parts(store, monkeypatch):
    monkeypatch.setattr(mirror, "FILES_TOGETHER", 2)
    store.publish_many([make(name) for name in "abcde"], partition="p")
    rows = store.connect().execute("SELECT episode_id FROM steps GROUP BY 1 ORDER BY 1").fetchall()
    assert [name for (name,) in rows] == list("abcde")
    assert len(copies(store)) == 6


def test_a_damaged_live_episode_is_named(store):
    store.publish(make("a"), partition="p")
    (path,) = (store.root / "live").rglob("*.live")
    path.write_bytes(path.read_bytes()[:-1])
    store.connect()  # images are not copied, so what is wrong with them does not matter to SQL
    path.write_bytes(path.read_bytes()[:100])
    (store.root / "mirror").rename(store.root / "gone")
    with pytest.raises(CorruptTrajectoryError, match=r"a\.live is damaged"):
        store.connect()
