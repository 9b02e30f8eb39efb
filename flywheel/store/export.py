"""Results of a query as a table to look at, CSV, JSON or parquet."""

import base64
import csv
import io
import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from typing import Any, BinaryIO, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from rich.cells import cell_len

from flywheel.errors import StoreError

Format = Literal["table", "csv", "json", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)
_LONGEST_CELL = 1000


def export(table: pa.Table, format: Format, out: BinaryIO) -> None:
    """Write every row to `out`, in UTF-8.

    `table` is for people: columns side by side, or a line for each where the terminal is too narrow. `csv` has nested
    values as JSON, `json` is one object a line, `parquet` keeps every type. Raises `StoreError` for another format.
    """
    writers: dict[str, Callable[[pa.Table, BinaryIO], None]] = {
        "table": _write_table,
        "csv": _write_csv,
        "json": _write_json,
        "parquet": pq.write_table,
    }
    if format not in writers:
        raise StoreError(f"There is no format '{format}'; take one of {', '.join(writers)}.")
    writers[format](table, out)


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(_values(column) for column in table.columns), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Python values; MAP columns as dictionaries."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def _write_table(table: pa.Table, out: BinaryIO) -> None:
    """Columns side by side where the terminal is wide enough, else one value a line."""
    rows = _rows(table)
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [table.column_names, *cells]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    columns = shutil.get_terminal_size((120, 24)).columns
    if sum(widths) + 2 * len(widths) <= columns and not any("\n" in cell for row in cells for cell in row):
        numbers = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in table.schema]
        text = "".join(_aligned(line, widths, numbers) for line in [lines[0], ["─" * w for w in widths], *cells])
    else:
        text = "".join(_expanded(number, table.column_names, row) for number, row in enumerate(cells, 1))
    out.write(f"{text}{len(rows)} row{'' if len(rows) == 1 else 's'}\n".encode())


def _aligned(cells: list[str], widths: list[int], numbers: list[bool]) -> str:
    padding = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    padded = [pad + cell if number else cell + pad for cell, pad, number in zip(cells, padding, numbers, strict=True)]
    return "  ".join(padded).rstrip() + "\n"


def _expanded(number: int, names: list[str], cells: list[str]) -> str:
    width = max(map(cell_len, names))
    indented = [cell.replace("\n", "\n" + " " * (width + 2)) for cell in cells]
    lines = [f"{name:>{width}}  {cell}\n" for name, cell in zip(names, indented, strict=True)]
    return f"── row {number} ".ljust(60, "─") + "\n" + "".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    text = "".join(c if c.isprintable() or c == "\n" else "�" for c in _text(value))
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def _write_csv(table: pa.Table, out: BinaryIO) -> None:
    sink = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(["" if value is None else _text(value) for value in row] for row in _rows(table))
    sink.detach()


def _write_json(table: pa.Table, out: BinaryIO) -> None:
    for row in _rows(table):
        line = json.dumps(dict(zip(table.column_names, row, strict=True)), ensure_ascii=False, default=_plain)
        out.write(line.encode() + b"\n")


def _text(value: Any) -> str:
    """A value in one cell: nested ones as JSON, bytes in base64."""
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    return value if isinstance(value, str) else str(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
