"""What a person sees while a stage runs: one bar, and above it what the stage says. All of it on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from flywheel.cli.output import err
from flywheel.jobs.launcher import Advance


class Bar:
    """One line for whatever runs at present; `begin` starts it anew for the next stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._stage = ""

    def begin(self, stage: str, key: str = "") -> None:
        """Nothing is known of its length yet, so the bar only moves."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(f"{stage} {key}".strip(), total=None, unit="")
        self._stage = stage

    def advance(self, advance: Advance) -> None:
        """`done` of `total` units."""
        if self._task is not None:
            self._progress.update(self._task, completed=advance.done, total=advance.total, unit=advance.unit)

    def say(self, line: str) -> None:
        """A line above the bar. The sentence that a stage stops with is left out: the command ends with it."""
        if not line.startswith(f"{self._stage}: "):
            self._progress.console.print(line, style="dim", markup=False)


@contextmanager
def bar() -> Iterator[Bar]:
    """Drawn on a terminal only; into a file or a pipe go the lines alone."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
    )
    console = err()
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        # On one terminal results must go above the bar; into a file they must go there, and rich would not let them.
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        yield Bar(progress)
