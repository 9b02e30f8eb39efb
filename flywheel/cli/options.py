"""Options that many commands share, and what they make of a configuration."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from flywheel.config import Config

EMBEDDED = "embedded"

Profile = Annotated[
    str,
    typer.Option("--profile", "-p", metavar="NAME|FILE.yaml", help="Profile that ships with flywheel, or your own."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="One setting over the profile; may be given many times."),
]
PolicyName = Annotated[
    str,
    typer.Option("--policy", metavar="REF", help="Version in this experiment, or the folder of a checkpoint."),
]
JsonPath = Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Also write the result here, as JSON.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Instead of the one that follows from the setting `seed`.")]
Format = Annotated[
    Literal["table", "csv", "json", "parquet"],
    typer.Option("--format", "-f", help="How rows are written; `json` is one object a line."),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there, not to standard output.")
]


def configure(profile: str, settings: list[str] | None, *more: str) -> "Config":
    """Profile, then `--set`, then what other options stand for. Raises `ConfigError`."""
    from flywheel.config import load_config

    return load_config(profile, [*(settings or ()), *more])


def check_folder_name(kind: str, name: str | None) -> None:
    """Refuse now what a stage would make a folder of in the wrong place. Raises `StoreError`."""
    from flywheel.store.layout import check_name

    if name:
        check_name(kind, name)
