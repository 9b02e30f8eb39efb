"""`flywheel desktops`: real desktops, and what they need on this machine."""

from typing import TYPE_CHECKING

import typer

from flywheel.cli.output import show_facts

if TYPE_CHECKING:
    from flywheel.envs.server.venvs import Venv

desktops = typer.Typer(help="Real desktops: set them up, serve them, look at them.", no_args_is_help=True)


@desktops.command()
def setup() -> None:
    """Make the two virtual environments of real desktops; what is there already stays."""
    from flywheel.envs.server.venvs import guest_venv, server_venv

    built = {made.name: _build(made) for made in (server_venv(), guest_venv())}
    show_facts(built)


def _build(venv: "Venv") -> str:
    from flywheel.cli.progress import bar
    from flywheel.envs.server.venvs import build
    from flywheel.jobs.launcher import Advance

    with bar() as shown:
        shown.begin(venv.name)
        if not venv.ready():
            shown.say(f"making {venv.folder}; this takes a minute or two and a network")
        made = build(venv, lambda done, total: shown.advance(Advance(done, total, "packages")))
    return f"{venv.folder} ({'made' if made else 'was there'})"
