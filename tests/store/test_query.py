"""SQL reads and cannot write; results come out in four formats."""

import csv
import io
import json
from datetime import datetime

import pyarrow.parquet as pq
import pytest

from flywheel.errors import ReadOnlyError, StoreError
from flywheel.store.export import FORMATS, export
from flywheel.store.query import query
from flywheel.testing import random_trajectory

READING = [
    "SELECT 1",
    "FROM episodes",
    "VALUES (1, 'a')",
    "  -- a comment\n SELECT count(*) FROM steps;",
    "WITH a AS (SELECT 1 AS x UNION ALL SELECT 2) SELECT sum(x) FROM a",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 5) FROM t",
    "DESCRIBE episodes",
    "SUMMARIZE SELECT n_steps FROM episodes",
    "SHOW TABLES",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE SELECT count(*) FROM episodes",
    "PIVOT steps ON action_type IN ('click', 'done') USING count(*)",
    "SELECT 'DROP TABLE episodes; COPY x' AS text",
    "SELECT e.episode_id FROM episodes e WHERE EXISTS (FROM steps s WHERE s.episode_id = e.episode_id)",
]

HOSTILE = [
    "",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW episodes",
    "DROP VIEW episodes",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE TEMP TABLE t AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "INSERT INTO internal.catalog VALUES ('x')",
    "UPDATE internal.catalog SET fingerprint = 'x'",
    "DELETE FROM internal.catalog",
    "WITH x AS (DELETE FROM internal.catalog RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO internal.catalog VALUES ('x') RETURNING *) FROM x",
    "COPY (SELECT 1) TO '{inside}'",
    "COPY (SELECT 1) TO '{outside}'",
    "WITH x AS (COPY (SELECT 1) TO '{inside}') SELECT * FROM x",
    "WITH x AS (COPY (SELECT 1) TO '{outside}') SELECT * FROM x",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{inside}'",
    "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{inside}'",
    "EXPLAIN /* hidden */ ANALYZE COPY (SELECT 1) TO '{inside}'",
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO '{inside}') SELECT * FROM x",
    "EXPORT DATABASE '{outside}'",
    "ATTACH '{outside}' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "PREPARE p AS SELECT 1",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM 'https://example.org/x.parquet'",
]


@pytest.fixture
def filled(store):
    for name in "abc":
        store.publish(random_trajectory(name, 2, (24, 16)), partition="p")
    store.seal("p", 1, 3)
    return store


@pytest.mark.parametrize("sql", READING)
def test_reading_statements_are_answered(filled, sql):
    assert query(filled, sql).num_columns >= 1


@pytest.mark.parametrize("sql", HOSTILE)
def test_hostile_statements_are_refused(filled, tmp_path, sql):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    inside, outside = filled.root / "seg" / "evil.csv", tmp_path / "evil"
    before = sorted(filled.root.rglob("*"))
    with pytest.raises(ReadOnlyError) as raised:
        query(filled, sql.format(inside=inside, outside=outside, secret=secret))
    assert "\n" not in str(raised.value)
    assert not outside.exists()
    assert sorted(filled.root.rglob("*")) == before
    assert query(filled, "SELECT count(*) AS n FROM episodes").to_pylist() == [{"n": 3}]


def test_python_variables_are_not_tables(filled):
    import pyarrow as pa

    local = pa.table({"a": [1]})
    assert local.num_rows == 1
    with pytest.raises(StoreError, match="local"):
        query(filled, "SELECT * FROM local")


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT nothing FROM episodes", "SELECT * FROM nowhere", "SELECT 1/'a'"])
def test_mistakes_get_one_sentence(filled, sql):
    with pytest.raises(StoreError) as raised:
        query(filled, sql)
    assert "\n" not in str(raised.value)
    assert not isinstance(raised.value, ReadOnlyError)


def test_parameters(filled):
    assert query(filled, "SELECT episode_id FROM episodes WHERE episode_id = ?", ["b"]).to_pylist() == [
        {"episode_id": "b"}
    ]
    assert query(filled, "SELECT $x AS x", {"x": "'; DROP"}).to_pylist() == [{"x": "'; DROP"}]


SQL = """SELECT 'a,"b"
c' AS text, 7 AS whole, 0.123456 AS number, NULL AS nothing, [1, 2] AS list, MAP {'k': 0.5} AS map, true AS flag,
TIMESTAMP '2026-01-02 03:04:05' AS time, '\\xC3\\xBC'::BLOB AS bytes"""


def exported(table, format):
    out = io.BytesIO()
    export(table, format, out)
    return out.getvalue()


def test_csv(filled):
    rows = list(csv.DictReader(io.StringIO(exported(query(filled, SQL), "csv").decode())))
    assert rows == [
        {
            "text": 'a,"b"\nc',
            "whole": "7",
            "number": "0.123456",
            "nothing": "",
            "list": "[1, 2]",
            "map": '{"k": 0.5}',
            "flag": "true",
            "time": "2026-01-02T03:04:05",
            "bytes": "w7w=",
        }
    ]


def test_json_is_one_object_a_line(filled):
    lines = exported(query(filled, SQL), "json").decode().splitlines()
    row = json.loads(lines[0])
    assert len(lines) == 1
    assert (row["text"], row["nothing"], row["list"], row["map"], row["flag"]) == (
        'a,"b"\nc',
        None,
        [1, 2],
        {"k": 0.5},
        True,
    )
    assert datetime.fromisoformat(row["time"]).year == 2026


def test_parquet_keeps_types(filled):
    table = query(filled, "SELECT * FROM steps")
    assert pq.read_table(io.BytesIO(exported(table, "parquet"))).equals(table)


def test_table_has_columns_side_by_side_or_a_line_for_each(filled, monkeypatch):
    table = query(filled, "SELECT episode_id, n_steps, error FROM episodes ORDER BY 1")
    monkeypatch.setenv("COLUMNS", "80")
    lines = exported(table, "table").decode().splitlines()
    assert lines[0].split() == ["episode_id", "n_steps", "error"]
    assert lines[2] == "a                 2  –"
    assert lines[-1] == "3 rows"
    monkeypatch.setenv("COLUMNS", "20")
    assert "episode_id  a" in exported(table, "table").decode()


def test_table_shows_no_control_characters(filled):
    assert b"\x1b" not in exported(query(filled, "SELECT chr(27) || '[31mred' AS text"), "table")


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_result_has_its_columns(filled, format):
    data = exported(query(filled, "SELECT episode_id FROM episodes WHERE false"), format)
    assert b"episode_id" in data or format == "json"


def test_an_unknown_format_is_refused(filled):
    with pytest.raises(StoreError, match="no format 'xml'; take one of table, csv, json, parquet"):
        exported(query(filled, "SELECT 1"), "xml")
