"""SQL, lists and film strips, on a real store."""

import csv
import io
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flywheel.cli.demo import QUERIES
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from tests.cli.conftest import Flywheel

COUNT = "SELECT count(*) AS n FROM episodes"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sealed partition of six, one evaluation of two."""
    home = tmp_path_factory.mktemp("home")
    store = TrajectoryStore(home / "store", fsync=False)
    for partition, count in (("iter-01", 6), ("eval-sft", 2)):
        attempt = store.begin(partition)
        for number in range(count):
            store.publish(random_trajectory(f"{partition}-{number}"), partition=partition, attempt=attempt)
        store.seal(partition, attempt, count)
    return home


@pytest.fixture
def asked(flywheel: Flywheel, home: Path) -> Flywheel:
    return lambda *arguments: flywheel(*arguments, "--set", f"home={home}")


def test_every_format_holds_the_same_rows(asked: Flywheel, tmp_path: Path) -> None:
    query = "SELECT episode_id, n_steps FROM episodes ORDER BY episode_id"
    rows = [json.loads(line) for line in asked("sql", query, "--format", "json").out.splitlines()]
    assert [row["episode_id"] for row in rows] == sorted(
        [f"iter-01-{n}" for n in range(6)] + ["eval-sft-0", "eval-sft-1"]
    )
    found = list(csv.DictReader(io.StringIO(asked("sql", query, "--format", "csv").out)))
    assert [{**row, "n_steps": int(row["n_steps"])} for row in found] == rows
    file = tmp_path / "rows.parquet"
    assert asked("sql", query, "--format", "parquet", "--output", file).out == ""
    assert pq.read_table(file).to_pylist() == rows
    assert asked("sql", query).out.endswith("8 rows\n")


@pytest.mark.parametrize("sql", QUERIES)
def test_the_queries_that_the_demo_recommends_run(asked: Flywheel, sql: str) -> None:
    ran = asked("sql", sql, "--format", "json")
    assert ran.code == 0
    assert ran.out.splitlines()


@pytest.mark.parametrize(
    "sql", ["DELETE FROM episodes", "COPY episodes TO 'stolen.csv'", "ATTACH 'x.db'", "SELECT 1; DROP VIEW steps"]
)
def test_a_write_is_refused_and_changes_nothing(
    asked: Flywheel, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked("sql", sql).refusal
    assert json.loads(asked("sql", COUNT, "--format", "json").out) == {"n": 8}
    assert not list(tmp_path.iterdir())


def test_sql_that_is_none_is_one_sentence(asked: Flywheel) -> None:
    assert "DuckDB refused the SQL" in asked("sql", "SELECT nothing FROM nowhere").refusal


def test_without_a_store_it_says_how_to_get_one(flywheel: Flywheel, tmp_path: Path) -> None:
    for command in (["sql", COUNT], ["trajectories"], ["show", "x"], ["gc"]):
        said = flywheel(*command, "--set", f"home={tmp_path / 'none'}").refusal
        assert "run `flywheel demo`" in said
    assert not (tmp_path / "none").exists()


def test_trajectories_by_partition_and_success(asked: Flywheel) -> None:
    def ids(*options: str) -> set[str]:
        rows = asked("trajectories", "--format", "json", *options).out.splitlines()
        return {json.loads(row)["episode_id"] for row in rows}

    assert len(ids()) == 8
    assert ids("--partition", "eval-sft") == {"eval-sft-0", "eval-sft-1"}
    assert ids("--success").isdisjoint(ids("--failure"))
    assert ids("--success") | ids("--failure") == ids()
    assert len(ids("--limit", "3")) == 3
    assert ids("--family", "nothing") == set()


def test_show_writes_a_page_that_stands_alone(asked: Flywheel, tmp_path: Path) -> None:
    page = tmp_path / "strip.html"
    assert asked("show", "iter-01-0", "--output", page).out == f"{page}\n"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("data:image/") >= 4


def test_show_of_somebody_unknown_is_one_sentence(asked: Flywheel, tmp_path: Path) -> None:
    said = asked("show", "nobody", "--output", tmp_path / "strip.html").refusal
    assert "no trajectory 'nobody'" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs apt-get install ffmpeg")
def test_show_writes_a_film_instead_of_the_page_or_beside_it(
    asked: Flywheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked("show", "iter-01-0", "--mp4", "film.mp4").out == "film.mp4\n"
    assert Path("film.mp4").read_bytes()[4:8] == b"ftyp"
    assert not Path("iter-01-0.html").exists()
    assert asked("show", "iter-01-0", "--mp4", "film.mp4", "-o", "page.html").out == "page.html\nfilm.mp4\n"
    assert "none does not exist" in asked("show", "iter-01-0", "--mp4", tmp_path / "none" / "film.mp4").refusal
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "run `apt-get install ffmpeg`" in asked("show", "iter-01-0", "--mp4", "other.mp4").refusal


def test_gc_says_what_went(asked: Flywheel) -> None:
    assert asked("gc").out == "0 files removed, 0.0 MB.\n"
