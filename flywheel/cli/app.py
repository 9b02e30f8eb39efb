"""`flywheel`: every stage from the command line, without Dagster.

Commands import what they need when they run, so that `--help` and SQL do not wait for torch. A refusal is one sentence
on standard error and status 1; wrong usage is 2, Ctrl-C 130.
"""

import errno
import io
import os
import sys
from collections.abc import Callable

import typer

from flywheel.cli.compare import compare_algorithms
from flywheel.cli.demo import demo
from flywheel.cli.desktops import desktops
from flywheel.cli.dev import dev
from flywheel.cli.doctor import doctor
from flywheel.cli.evaluate import evaluate
from flywheel.cli.judge import judge
from flywheel.cli.make import base, demonstrations, rollout, sft_set
from flywheel.cli.query import gc, show, sql, trajectories
from flywheel.cli.tasks import tasks
from flywheel.cli.train import train
from flywheel.errors import FlywheelError

app = typer.Typer(
    help="Trains computer-use agents: alignment, a flywheel of their own successes, policy gradient, evaluation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (demo, dev, doctor),
    "Stages": (base, demonstrations, rollout, sft_set),
    "Trajectories": (sql, trajectories, show, judge, gc),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command("eval", rich_help_panel="Stages")(evaluate)
app.command(rich_help_panel="Stages")(compare_algorithms)
app.add_typer(tasks, name="tasks", rich_help_panel="Stages")
app.add_typer(train, name="train", rich_help_panel="Stages")
app.add_typer(desktops, name="desktops", rich_help_panel="Desktops")

MACHINE = {
    errno.ENOSPC: "no space is left on the device; free some and run it again, what is finished stays.",
    errno.EDQUOT: "the disk quota is used up; free some and run it again, what is finished stays.",
    errno.EACCES: "you lack the permission to use it.",
    errno.EROFS: "it is on a read-only file system.",
    errno.ENOTDIR: "a file stands where a folder is needed; name another place.",
}
"""What a machine refuses, as a sentence. Any other `OSError` is a bug and keeps its traceback."""


def main() -> None:
    """The console script."""
    # Stages say how far they are through their run folders; the bars of libraries would only fill logs.
    for library in ("HF_HUB", "HF_DATASETS"):
        os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a line of `demo | tee log` is there when its stage is done
    try:
        app()
    except FlywheelError as error:
        _refuse(str(error))
    except OSError as error:
        if error.errno not in MACHINE:
            raise
        _refuse(f"{error.filename or 'Writing failed'}: {MACHINE[error.errno]}")


def _refuse(sentence: str) -> None:
    print(sentence, file=sys.stderr)
    sys.exit(1)
