"""`flywheel desktops`: what they need on this machine, serving them, looking at those that are served."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flywheel.cli.output import show_facts, show_table

if TYPE_CHECKING:
    from flywheel.envs.pool import EnvPool
    from flywheel.envs.server.venvs import Venv

desktops = typer.Typer(help="Real desktops: set them up, serve them, look at them.", no_args_is_help=True)

TOKEN_VARIABLE = "FLYWHEEL_DESKTOPS_TOKEN"


@desktops.command()
def setup() -> None:
    """Make the two virtual environments of real desktops; what is there already stays."""
    from flywheel.envs.server.venvs import guest_venv, server_venv

    built = {made.name: _build(made) for made in (server_venv(), guest_venv())}
    show_facts(built)


@desktops.command()
def serve(
    backend: Annotated[
        Literal["simulated", "xvfb", "qemu", "remote", "gateway", "stock"], typer.Option(help="Kind of desktops.")
    ] = "simulated",
    count: Annotated[int, typer.Option("--desktops", "-n", min=1, max=1000, help="How many are kept warm.")] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond this machine a token is required.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8100,
    token_env: Annotated[
        str, typer.Option(metavar="NAME", help="Variable of the environment with the token for clients.")
    ] = TOKEN_VARIABLE,
    screen: Annotated[str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Size of the screens, pixels.")] = None,
    options: Annotated[str, typer.Option(metavar="JSON", help="Further options of the kind of desktop.")] = "{}",
    episode: Annotated[
        str | None, typer.Option(metavar="NAME|MODULE:CLASS", help="What plays tasks on it, instead of the usual.")
    ] = None,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that live leases may go on after SIGTERM.")] = 300.0,
    bridge_ttl: Annotated[
        float, typer.Option(min=1, help="Seconds of silence after which clients without heartbeats lose their desktop.")
    ] = 900.0,
    body_limit: Annotated[int, typer.Option(min=1024, help="Bytes that a request may have.")] = 8 << 20,
) -> None:
    """Serve desktops over HTTP until SIGTERM (lets live episodes end) or Ctrl-C."""
    from flywheel.envs.server.app import AppOptions
    from flywheel.envs.server.serve import ServeOptions
    from flywheel.envs.server.serve import serve as run

    token = os.environ.get(token_env) or None
    run(
        ServeOptions(
            backend=backend,
            episode=episode,
            desktops=count,
            host=host,
            port=port,
            token_variable=token_env,
            app=AppOptions(token=token, body_limit=body_limit, bridge_ttl=bridge_ttl),
            machine=_machine(options, screen),
            drain=drain,
        ),
        lambda line: print(line, file=sys.stderr, flush=True),
    )


@desktops.command()
def ls(
    url: Annotated[
        str, typer.Option("--url", metavar="URL,...", help="Env servers, separated by commas.")
    ] = "http://127.0.0.1:8100",
) -> None:
    """List the desktops of env servers, and who uses them."""
    import asyncio

    from flywheel.envs.pool import EnvPool

    async def look() -> list[list[str]]:
        async with EnvPool(url) as pool:
            return await _rows(pool)

    titles = ("server", "desktop", "state", "lease", "client", "task", "steps", "seconds", "episodes", "problem")
    show_table(titles, asyncio.run(look()), words=6)


@desktops.command()
def watch(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="Lease or desktop, as `flywheel desktops ls` lists it.")],
    url: Annotated[
        str, typer.Option("--url", metavar="URL,...", help="Env servers, separated by commas.")
    ] = "http://127.0.0.1:8100",
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show a leased desktop on a page, view only, until its episode ends; prints the address."""
    import asyncio

    from flywheel.envs.pool import EnvPool

    async def ask() -> tuple[str, str]:
        async with EnvPool(url) as pool:
            return await _page(pool, wanted)

    server, page = asyncio.run(ask())
    if (command := tunnel(server, page)) is not None:
        print(f"The page is on the env server's own machine; to see it from here run `{command}`.", file=sys.stderr)
    print(page)
    if open_it:
        typer.launch(page)


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


async def _rows(pool: "EnvPool") -> list[list[str]]:
    rows = []
    for server in pool.servers:
        leases = {lease["lease"]: lease for lease in await server.list("leases")}
        for each in await server.list("desktops"):
            lease: dict[str, Any] = leases.get(each["lease"], {})
            user = (each["lease"], lease.get("client"), lease.get("task"), lease.get("steps"))
            told = (server.url, each["desktop"], each["state"], *user, round(each["since_s"]), each["episodes"])
            rows.append(["" if word is None else str(word) for word in (*told, each["problem"])])
    return rows


async def _page(pool: "EnvPool", wanted: str) -> tuple[str, str]:
    """URLs of the server that has the lease or the desktop, and of the page. Raises `ConfigError`, `EnvError`."""
    from flywheel.errors import ConfigError

    found = [
        (server, each["desktop"])
        for server in pool.servers
        for each in await server.list("desktops")
        if wanted in (each["lease"], str(each["desktop"]))
    ]
    if not found:
        raise ConfigError(f"There is no lease and no desktop '{wanted}'; see `flywheel desktops ls`.")
    if len(found) > 1:
        raise ConfigError(f"{len(found)} servers have a desktop '{wanted}'; name its lease, or one server with --url.")
    ((server, desktop),) = found
    return server.url, await server.view(desktop)


def tunnel(server: str, page: str) -> str | None:
    """What brings a page of another machine's loopback here; None when it is this machine's."""
    from urllib.parse import urlsplit

    host, port = urlsplit(server).hostname, urlsplit(page).port
    return None if host in ("127.0.0.1", "::1", "localhost") else f"ssh -N -L {port}:127.0.0.1:{port} {host}"


def _machine(options: str, screen: str | None) -> dict[str, Any]:
    """Raises `ConfigError`."""
    from flywheel.errors import ConfigError

    try:
        given = json.loads(options)
    except ValueError as error:
        raise ConfigError(f'--options is not JSON ({error}); write for example \'{{"layout": "free"}}\'.') from error
    if not isinstance(given, dict):
        raise ConfigError('--options must be a JSON object; write for example \'{"layout": "free"}\'.')
    if screen is not None:
        width, _, height = screen.partition("x")
        if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
            raise ConfigError(f"--screen '{screen}' is no size; write for example 1920x1080.")
        given["screen"] = [int(width), int(height)]
    return given
