"""Seconds from nothing to a desktop that answers, and back to nothing; one alone and eight at once. A revert is both.

    python benchmarks/desktop_boot.py [--desktops 8] [--repeats 5] [--guest-python PATH]

Needs the Debian packages of real desktops and `flywheel desktops setup`. The baseline starts the same programs with the
same guest server as container entry points usually do: no sandbox, one after another, each awaited by asking for it ten
times a second. Ready means that the guest server answers and the window manager runs. Every repeat starts cold
processes on warm file caches.
"""

import argparse
import contextlib
import http.client
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from flywheel.envs.server.machines.xvfb.machine import XvfbMachine
from flywheel.envs.server.machines.xvfb.options import XvfbOptions


def await_(ready: Callable[[], bool]) -> None:
    while not ready():
        time.sleep(0.1)


def answers(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        try:
            connection.request("GET", "/v1/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


@contextlib.contextmanager
def running(command: list[str], env: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("ab") as file, subprocess.Popen(command, env=env, stdout=file, stderr=file) as process:
        try:
            yield
        finally:
            process.terminate()


def one_after_another(options: XvfbOptions, display: int) -> tuple[float, float]:
    """Boot and teardown of the baseline, in seconds."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home, started = Path(folder), time.perf_counter()
        (home / ".Xauthority").touch()
        env = {"PATH": os.environ["PATH"], "HOME": folder, "DISPLAY": f":{display}", "XDG_RUNTIME_DIR": folder}
        env |= {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={folder}/bus", "PYTHONPATH": str(options.guest.parent)}
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]

        def start(*command: str) -> None:
            stack.enter_context(running(list(command), env, home / "log"))

        def holds(*command: str) -> bool:
            return subprocess.run(command, env=env, capture_output=True).returncode == 0

        start("Xvfb", env["DISPLAY"], "-screen", "0", "{}x{}x24".format(*options.screen), "-noreset")
        await_(lambda: holds("xdpyinfo"))
        start("dbus-daemon", "--session", "--nofork", f"--address=unix:path={folder}/bus")
        await_(lambda: (home / "bus").exists())
        start("/usr/libexec/at-spi-bus-launcher", "--launch-immediately", "--a11y=1")
        start("openbox")
        await_(lambda: holds("wmctrl", "-m"))
        start(str(options.guest_python), "-m", "guest", "--host", "127.0.0.1", "--port", str(port))
        await_(lambda: answers(port))
        ready = time.perf_counter()
        stack.close()
        return ready - started, time.perf_counter() - ready


def sandboxed(options: XvfbOptions, display: int) -> tuple[float, float]:
    """Boot and teardown in seconds; runs in a thread that outlives its desktop."""
    machine, started = XvfbMachine(options), time.perf_counter()
    machine.start()
    ready = time.perf_counter()
    machine.stop()
    return ready - started, time.perf_counter() - ready


WAYS = {"flywheel: sandboxed": sandboxed, "baseline: one after another, bare": one_after_another}


def show(name: str, spent: list[tuple[float, float]]) -> None:
    boots, teardowns = zip(*spent, strict=True)
    cells = [f"{median(took):.2f} (worst {max(took):.2f})" for took in (boots, teardowns)]
    print(f"  {name:<34}boot {cells[0]}, teardown {cells[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--desktops", type=int, default=8, help="how many at once")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--guest-python", type=Path, help="default: of `flywheel desktops setup`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = XvfbOptions(run_root=Path(folder))
        if given.guest_python:
            options = replace(options, guest_python=given.guest_python)
        for desktops in (1, given.desktops):
            spent: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
            for _ in range(given.repeats):
                for name, way in WAYS.items():
                    with ThreadPoolExecutor(desktops) as pool:
                        spent[name] += pool.map(partial(way, options), range(50, 50 + desktops))
            print(f"{desktops} at once, {given.repeats} times in turns, median seconds")
            for name, took in spent.items():
                show(name, took)


if __name__ == "__main__":
    main()
