"""SQL on the store that cannot write.

Three things keep it so, because none of them is enough alone: the database is opened read-only; DuckDB may touch
no file outside the store; and the parsed statement may hold nothing but reading, all the way down (a CTE may hide a
COPY or a DELETE, and both count as SELECT by the statement's own type).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from flywheel.errors import ReadOnlyError, StoreError
from flywheel.store.catalog import quoted
from flywheel.store.store import TrajectoryStore

_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_EXPLAIN = re.compile(r"explain\s+(analyze\s+)?(\(([^()]*)\)\s*)?", re.IGNORECASE)


def query(store: TrajectoryStore, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
    """The result of one reading statement: SELECT, WITH, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN.

    Args:
        parameters: for `?` or `$name` in the statement.
    Raises: `ReadOnlyError` for anything that could write, `StoreError` for SQL that DuckDB refuses.
    """
    with store.connect() as connection:
        try:
            check_reading(connection, sql)
            _lock_down(connection, store)
            return connection.sql(sql, params=parameters).to_arrow_table()
        except duckdb.PermissionException as error:
            raise ReadOnlyError(f"SQL may read only the store's own views: {_sentence(error)}") from error
        except duckdb.Error as error:
            raise StoreError(f"DuckDB refused the SQL: {_sentence(error)}") from error


def check_reading(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises `ReadOnlyError` unless `sql` is one statement that only reads, `duckdb.Error` if it is no SQL."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise ReadOnlyError(f"Give one SQL statement, not {len(statements)}.")
    text = statements[0].query.strip()
    if statements[0].type == duckdb.StatementType.EXPLAIN:
        text = _EXPLAIN.sub("", text, count=1)
    elif statements[0].type != duckdb.StatementType.SELECT:
        raise ReadOnlyError(
            f"{_keyword(text)} is not a reading statement, and the store is read-only to SQL; "
            "use SELECT (PIVOT needs its IN list)."
        )
    (serialized,) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()[0]
    tree = json.loads(serialized)
    if tree["error"]:
        raise ReadOnlyError(f"{_keyword(text)} cannot be shown to be a reading statement; use SELECT.")
    writing = _query_nodes(tree) - _READING_NODES
    if writing:
        name = min(writing).split("_")[0]
        raise ReadOnlyError(f"There is {name} inside the WITH, and the store is read-only to SQL; take it out.")


def _query_nodes(tree: Any) -> set[str]:
    """Types of every query node in the serialised statement."""
    if isinstance(tree, list):
        return set().union(*map(_query_nodes, tree))
    if not isinstance(tree, dict):
        return set()
    kind = tree.get("type")
    own = {kind} if isinstance(kind, str) and kind.endswith("_NODE") else set()
    return own.union(*map(_query_nodes, tree.values()))


def _lock_down(connection: duckdb.DuckDBPyConnection, store: TrajectoryStore) -> None:
    folders = ", ".join(quoted(store.root / name) for name in ("seg", "mirror"))
    connection.execute(f"SET allowed_directories = [{folders}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET lock_configuration = true")


def _keyword(text: str) -> str:
    return text.split(None, 1)[0].upper() if text else "Nothing"


def _sentence(error: duckdb.Error) -> str:
    """The first line of DuckDB's message; the others draw where the error is."""
    return str(error).splitlines()[0].rstrip(".!") + "."
