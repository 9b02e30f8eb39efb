"""Commands that look at trajectories: SQL, a list, one as a film strip. None of them needs torch."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flywheel.cli.options import EMBEDDED, Format, Output, Profile, Settings, configure
from flywheel.cli.output import check_writable, out

if TYPE_CHECKING:
    import pyarrow as pa


Partition = Annotated[str | None, typer.Option(help="Only of this partition, e.g. `iter-03` or `eval-sft`.")]


def sql(
    statement: Annotated[str, typer.Argument(help='One reading statement, e.g. "SELECT * FROM episodes LIMIT 5".')],
    format: Format = "table",
    output: Output = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Query the store. Views: episodes, steps, tasks, policies, eval_results (`DESCRIBE episodes` lists columns)."""
    from flywheel.store.opening import open_existing
    from flywheel.store.query import query

    _check_target(format, output)
    _write(query(open_existing(configure(profile, settings)), statement), format, output)


def trajectories(
    partition: Partition = None,
    family: Annotated[str | None, typer.Option(help="Only of this task family.")] = None,
    success: Annotated[
        bool | None, typer.Option("--success/--failure", help="Only those that were solved, or were not.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest first.")] = 20,
    format: Format = "table",
    output: Output = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """List trajectories of the experiment, the newest first."""
    from flywheel.store.opening import open_existing
    from flywheel.store.query import query

    _check_target(format, output)
    config = configure(profile, settings)
    # Missing filters are NULL, and `x = NULL` is never true; hence the first half of each condition.
    statement = """
        SELECT episode_id, success, family, level, n_steps AS turns, stop_reason AS stopped, instruction
        FROM episodes
        WHERE experiment = $experiment
          AND ($partition IS NULL OR partition = $partition)
          AND ($family IS NULL OR family = $family)
          AND ($success IS NULL OR success = $success)
        ORDER BY started_at DESC, episode_id LIMIT $limit"""
    wanted = {"partition": partition, "family": family, "success": success, "limit": limit}
    _write(query(open_existing(config), statement, {"experiment": config.experiment, **wanted}), format, output)


def show(
    trajectory: Annotated[str, typer.Argument(metavar="ID", help="As `flywheel trajectories` lists it.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Default: ID.html.")
    ] = None,
    mp4: Annotated[
        Path | None, typer.Option("--mp4", metavar="FILE.mp4", help="A film, a second a turn, instead of the page.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    partition: Partition = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Write one trajectory as an HTML film strip or as a film, with its clicks drawn on the screenshots."""
    from flywheel.store.film import write_film
    from flywheel.store.opening import open_existing
    from flywheel.store.viewer import render_trajectory

    page = output or (Path(f"{trajectory}.html") if mp4 is None else None)
    check_writable(page)
    check_writable(mp4)
    found = open_existing(configure(profile, settings)).read(trajectory, partition=partition)
    if page is not None:
        page.write_text(render_trajectory(found), encoding="utf-8")
    if mp4 is not None:
        write_film(found, mp4)
    for written in filter(None, (page, mp4)):
        out().print(written, markup=False)
        if open_it:
            typer.launch(written.absolute().as_uri())


def gc(
    grace: Annotated[
        float | None, typer.Option(min=0, help="Only what is this many seconds old. Default: store.gc_grace_seconds.")
    ] = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Remove what the store no longer needs: replaced attempts, abandoned writes."""
    from flywheel.store.opening import open_existing

    config = configure(profile, settings)
    removed = open_existing(config).gc(config.store.gc_grace_seconds if grace is None else grace)
    out().print(f"{removed.files} files removed, {removed.bytes / 1e6:.1f} MB.")


def _check_target(format: str, output: Path | None) -> None:
    from flywheel.errors import ConfigError

    check_writable(output)
    if format == "parquet" and output is None and sys.stdout.isatty():
        raise ConfigError("Parquet is no text to look at; name a file with --output FILE.parquet.")


def _write(table: "pa.Table", format: Format, output: Path | None) -> None:
    from flywheel.store.export import export

    if output is None:
        export(table, format, sys.stdout.buffer)
        return
    with output.open("wb") as file:
        export(table, format, file)
    print(f"{table.num_rows} rows in {output}", file=sys.stderr)
