"""`flywheel doctor`: the preflight."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flywheel.cli.options import EMBEDDED, Profile, Settings, configure
from flywheel.cli.output import out

if TYPE_CHECKING:
    from flywheel.config import Config
    from flywheel.jobs.findings import Finding
    from flywheel.types import PolicyRef


def doctor(
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="REF", help="Policy to check. Default: a tiny one, thrown away.")
    ] = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Check that this machine and a policy are fit to train: one line each, and what to do about a failure."""
    from flywheel.workspace import Workspace

    config = configure(profile, settings)
    reference = Workspace(config).policy(policy) if policy else None
    failed = 0
    for finding in _findings(config, reference):
        _print(finding)
        failed += not finding.ok
    out().print(f"{failed} failed." if failed else "Everything is in order.", markup=False)
    raise typer.Exit(1 if failed else 0)


def _findings(config: "Config", policy: "PolicyRef | None") -> "Iterator[Finding]":
    """The machine first: it costs a second, and may explain what comes after."""
    from flywheel.cli.stages import stages
    from flywheel.jobs.findings import Finding
    from flywheel.jobs.machine_checks import machine_findings

    with stages(config) as run:
        yield from machine_findings(config)
        yield ports()
        result = run.look("doctor", policy.version if policy else "throw-away", {"policy": policy and asdict(policy)})
    yield from (Finding(**finding) for finding in result["findings"])


def ports(host: str = "127.0.0.1") -> "Finding":
    """There is a port for the Dagster UI: the usual one, or another that `flywheel dev` will find."""
    from flywheel.errors import ConfigError
    from flywheel.jobs.findings import Finding
    from flywheel.resources.webserver import FIRST_PORT, free_port

    try:
        port = free_port(host)
    except ConfigError as error:
        return Finding("ports", False, str(error), "stop what holds them.")
    taken = "" if port == FIRST_PORT else f"{FIRST_PORT} is taken, "
    return Finding("ports", True, f"{taken}{port} is free for `flywheel dev`")


def _print(finding: "Finding") -> None:
    verdict = "[green]ok  [/green]" if finding.ok else "[bold red]FAIL[/bold red]"
    out().print(verdict, end=" ")
    out().print(f"{finding.name:<12} {finding.detail}" + (f" -> {finding.mend}" if finding.mend else ""), markup=False)
