"""Where things are written: data on standard output, everything about the work on standard error."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


@cache
def out() -> "Console":
    """Results; plain text when it is not a terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


@cache
def err() -> "Console":
    """Progress, logs and refusals."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_facts(facts: Mapping[str, Any]) -> None:
    """Name and value, line by line; what is None is left out."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value is not None:
            table.add_row(f"[dim]{name.replace('_', ' ')}[/dim]", _text(value))
    out().print(table)


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> None:
    """Rows under titles; the first `words` columns are text, the others numbers."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, header_style="bold", pad_edge=False)
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index < words else "right")
    for row in rows:
        table.add_row(*row)
    out().print(table)


def rate(success: Mapping[str, float]) -> str:
    """`81.2% [77.5, 84.4]`: a rate with its 95% interval."""
    low, high = 100 * success["ci_low"], 100 * success["ci_high"]
    return f"{success['success_rate']:.1%} [{low:.1f}, {high:.1f}]"


def check_writable(path: Path | None) -> None:
    """Refuse now what could not be written after minutes of work. Raises `ConfigError`."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it.")
    if not folder.is_dir():
        raise ConfigError(f"{path} cannot be written, because {folder} does not exist; make that folder first.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written; you lack the permission.")


def write_json(path: Path | None, content: Any) -> None:
    """The file appears whole or not at all; without a path nothing happens."""
    if path is None:
        return
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_text(json.dumps(content, indent=2) + "\n")
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
