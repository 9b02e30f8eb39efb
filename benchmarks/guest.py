"""Click and screenshot of the guest server, against what the stock in-VM server does for each call.

    python benchmarks/guest.py [--repeat 20] [--size 1920x1080]

The baseline, on the same display in the same run: a fresh Python process that imports pyautogui for an action, and
`pyautogui.screenshot` through scrot to PNG, pointer drawn, for a screenshot. The stock server imports pyautogui once
for screenshots, so that baseline runs in one process and is timed inside it. Ours is timed at the client, with HTTP.
The display shows a text editor and a terminal. Medians of wall-clock milliseconds.
"""

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(os.environ.get("FLYWHEEL_DESKTOPS", Path.home() / ".cache/flywheel/desktops"))
PYTHON = str(ROOT / "guest-venv/bin/python")
SERVERS = str(Path(__file__).parents[1] / "flywheel/envs/server")

STOCK_CLICK = "import pyautogui; import time; pyautogui.FAILSAFE = False; pyautogui.click({x}, {y})"
STOCK_SHOTS = """
import sys, time, pyautogui
from PIL import Image
pointer = Image.new("RGBA", (24, 24), "black")
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    shot = pyautogui.screenshot()
    shot.paste(pointer, tuple(pyautogui.position()), pointer)
    shot.save(sys.argv[2])
    print('took', time.perf_counter() - began)
"""


def median_ms(work: Callable[[], object], repeat: int) -> float:
    work()  # the first call opens connections
    spent = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return 1000 * statistics.median(spent)


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        self._connection.request(method, path, None if body is None else json.dumps(body))
        answer = self._connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return data


def measure(env: dict[str, str], port: int, repeat: int, folder: str) -> None:
    client = Client(port)
    script = STOCK_CLICK.format(x=300, y=300)

    def stock_click() -> object:
        return subprocess.run([PYTHON, "-c", script], env=env, check=True, capture_output=True)

    clicks = {
        "fresh process that imports pyautogui (baseline)": stock_click,
        "/v1/action": lambda: client.ask("POST", "/v1/action", {"type": "click", "x": 300, "y": 300}),
        "/execute, as OSWorld's controller sends it": lambda: client.ask(
            "POST", "/execute", {"command": ["python", "-c", script], "shell": False}
        ),
    }
    report("click", {name: median_ms(work, repeat) for name, work in clicks.items()})
    told = subprocess.run(
        [PYTHON, "-c", STOCK_SHOTS, str(repeat + 1), f"{folder}/shot.png"],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    took = [float(line.split()[1]) for line in told.splitlines() if line.startswith("took")]
    stock_shot = 1000 * statistics.median(took[1:])
    shots = {"pyautogui.screenshot through scrot, PNG (baseline)": stock_shot}
    for codec in ("jpeg", "png", "webp"):
        path = f"/v1/screenshot?format={codec}"
        shots[f"{path} ({len(client.ask('GET', path)) // 1024} KB)"] = median_ms(
            lambda path=path: client.ask("GET", path),  # type: ignore[misc]
            repeat,
        )
    report("screenshot", shots)


def report(what: str, times: dict[str, float]) -> None:
    baseline = next(iter(times.values()))
    print(what)
    for name, spent in times.items():
        print(f"  {name:<54}{spent:>8.1f} ms{baseline / spent:>8.1f}x")


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come up within 20 s.")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--size", default="1920x1080")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        read, write = os.pipe()
        screen = ["-screen", "0", f"{options.size}x24", "-nolisten", "tcp", "-noreset"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes = [subprocess.Popen(["Xvfb", "-displayfd", str(write), *screen], pass_fds=[write], **silent)]
        try:
            with os.fdopen(read) as told:
                env = os.environ | {"DISPLAY": f":{told.readline().strip()}", "HOME": folder}
            env |= {"XDG_SESSION_TYPE": "x11", "XAUTHORITY": f"{folder}/.Xauthority"}
            Path(folder, ".Xauthority").touch()
            for command in (["openbox"], ["mousepad", "/etc/services"], ["xterm", "-e", "ls -la /usr/bin; sleep 999"]):
                processes.append(subprocess.Popen(command, env=env, **silent))
            server = [PYTHON, "-m", "guest", "--port", str(port)]
            processes.append(subprocess.Popen(server, env=env | {"PYTHONPATH": SERVERS}))
            wait_for(lambda: _answers(port), "The guest server")
            time.sleep(3)  # applications draw
            print(f"{options.size}, medians of {options.repeat}")
            measure(env, port, options.repeat, folder)
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def _answers(port: int) -> bool:
    try:
        return bool(Client(port).ask("GET", "/v1/health"))
    except (OSError, AssertionError):
        return False


if __name__ == "__main__":
    main()
