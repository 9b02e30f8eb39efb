"""A stage that does what its arguments say, for the launcher's tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.config import Config
from flywheel.errors import PartitionBusyError
from flywheel.jobs.base import Progress


def run(config: Config, args: dict[str, Any], progress: Progress) -> Mapping[str, Any]:
    progress.log(f"pid {os.getpid()} does {args['what']}")
    return {
        "answer": _answer,
        "refuse": _refuse,
        "crash": _crash,
        "killed": _killed,
        "hang": _hang,
        "leave": _leave,
    }[args["what"]](args, progress)


def _answer(args: dict[str, Any], progress: Progress) -> Mapping[str, Any]:
    for step in range(3):
        progress.metrics(step, {"loss": 1.0 / (step + 1)})
        progress.advance(step + 1, 3, "steps")
    return {
        "seconds": 0.0,
        "secret": os.environ.get("SECRET"),
        "session": os.getsid(0) == os.getpid(),
        "warm": Path(sys.argv[0]).name == "worker.py",
        "threads": len(os.listdir("/proc/self/task")),
    }


def _refuse(args: dict[str, Any], progress: Progress) -> Mapping[str, Any]:
    raise PartitionBusyError("Process 7 holds iter-01; wait for it.")


def _crash(args: dict[str, Any], progress: Progress) -> Mapping[str, Any]:
    raise ZeroDivisionError("half a step")


def _killed(args: dict[str, Any], progress: Progress) -> Mapping[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _hang(args: dict[str, Any], progress: Progress) -> Mapping[str, Any]:
    """A tree that will not go by itself: a deaf grandchild, and one that left for a session of its own."""
    _start_family(Path(args["pids"]))
    if args.get("deaf"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)
    return {}


def _leave(args: dict[str, Any], progress: Progress) -> Mapping[str, Any]:
    """Ends well, and leaves its family behind."""
    _start_family(Path(args["pids"]))
    return {"seconds": 0.0}


def _start_family(pids: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    start = f"p = subprocess.Popen([sys.executable, '-c', {deaf!r}])"
    nested = f"import subprocess, sys, time; {start}; print(p.pid, flush=True); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, text=True)
    apart = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
    assert parent.stdout is not None
    grandchild = parent.stdout.readline().strip()
    staged = pids.with_suffix(".tmp")
    staged.write_text(f"{os.getpid()} {parent.pid} {grandchild} {apart.pid}")
    staged.rename(pids)
