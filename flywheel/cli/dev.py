"""`flywheel dev`: the Dagster UI, with no set-up."""

from typing import Annotated

import typer

from flywheel.cli.options import EMBEDDED, Profile, Settings
from flywheel.cli.output import out


def dev(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: the first free one from 3000.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Open the Dagster UI: lineage, runs, figures, the sensor that turns the flywheel. Ctrl-C stops all of it."""
    from flywheel.resources.webserver import dev as serve

    raise typer.Exit(serve(profile, settings or (), host=host, port=port, announce=lambda line: out().print(line)))
