"""`flywheel tasks`: generate them, or import those of others."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flywheel.cli.options import EMBEDDED, JsonPath, Profile, Settings, configure
from flywheel.cli.output import check_writable, err, show_facts, show_table, write_json

if TYPE_CHECKING:
    from flywheel.datasets.osworld import Entry

tasks = typer.Typer(
    invoke_without_command=True, help="Generate the training and held-out tasks of a profile, or import tasks."
)


@tasks.callback()
def generate(context: typer.Context, profile: Profile = EMBEDDED, settings: Settings = None) -> None:
    """Generate the training and held-out tasks of a profile; with a command, what that says."""
    if context.invoked_subcommand:
        return
    from flywheel.jobs.tasks import build_tasks
    from flywheel.workspace import Workspace

    workspace = Workspace(configure(profile, settings))
    built = build_tasks(workspace)
    show_table(("family", "tasks"), [(family, str(count)) for family, count in built.pop("by_family").items()])
    show_facts({**built, "folder": workspace.tasks_dir})


@tasks.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="OSWorld's folder, a tasks parquet, or a folder of task files.")],
    json_path: JsonPath = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="First download what tasks need that could run here otherwise.")
    ] = False,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Read OSWorld's tasks, say which can run on this machine and why others cannot, and keep those that can."""
    from flywheel.datasets.osworld import survey
    from flywheel.jobs.tasks import this_machine, write_imported
    from flywheel.workspace import Workspace

    check_writable(json_path)
    source = path.expanduser().absolute()
    config = configure(profile, settings, f"tasks.source={source}")
    entries = survey(source, this_machine())
    if fetch:
        _fetch(entries)
        entries = survey(source, this_machine())
    write_json(json_path, [entry.to_json() for entry in entries])
    for entry in entries:
        if entry.cause == "malformed":
            err().print(entry.reason, style="yellow", markup=False)
    _show(entries)
    if not any(entry.runnable for entry in entries):
        err().print("None of them can run on this machine, so no tasks were written.", style="yellow")
        raise typer.Exit(code=1 if all(entry.cause == "malformed" for entry in entries) else 0)
    workspace = Workspace(config)
    built = write_imported(workspace, entries)
    built.pop("by_family")
    show_facts({**built, "folder": workspace.tasks_dir, "used_with": f"--set tasks.source={source}"})


def _fetch(entries: "Sequence[Entry]") -> None:
    """Into the offline cache; what could not be had is said, and the tasks that need it stay refused."""
    from flywheel.cli.progress import bar
    from flywheel.datasets.fetch import fetch
    from flywheel.jobs.launcher import Advance
    from flywheel.jobs.tasks import this_machine

    with bar() as shown:
        shown.begin("downloads")
        wanted = [entry.task for entry in entries if entry.task and entry.cause == "file"]
        cache = this_machine().cache
        for problem in fetch(wanted, cache, lambda done, total: shown.advance(Advance(done, total, "files"))):
            shown.say(problem)


def _show(entries: "Sequence[Entry]") -> None:
    """One row a domain: how many there are, how many can run, and why the others cannot."""
    rows = []
    for domain in [*sorted({entry.domain for entry in entries}), None]:
        these = [entry for entry in entries if domain is None or entry.domain == domain]
        causes = Counter(entry.cause for entry in these if not entry.runnable)
        why = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
        runs = sum(entry.runnable for entry in these)
        rows.append(("all" if domain is None else domain or "-", why, str(len(these)), str(runs)))
    show_table(("domain", "cannot run here", "tasks", "can run"), rows, words=2)
