"""Screenshots of many sandboxed desktops at once, each with Calc open, against the stock in-VM server's way.

    python benchmarks/busy_desktops.py [--desktops 8] [--repeat 20] [--size 1920x1080]

Needs `make desktops`. Every desktop is asked for one screenshot after another, all of them at the same time. The
baseline runs on the same desktops in the same run: `pyautogui.screenshot` through scrot to PNG in one process a desktop
that has imported pyautogui before, timed inside it. Ours is timed at the client, with HTTP and the way into the
sandbox. Medians of wall-clock milliseconds.
"""

import argparse
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from flywheel.envs.server.machines.xvfb.machine import XvfbMachine
from flywheel.envs.server.machines.xvfb.options import XvfbOptions

CALC = ["libreoffice", "--nologo", "--norestore", "--calc"]
READY_SECONDS = 120.0
STOCK = """
import time, pyautogui
pyautogui.screenshot()
for _ in range({repeat}):
    began = time.perf_counter()
    pyautogui.screenshot().save('/tmp/shot.png')
    print(time.perf_counter() - began)
"""


class Client:
    """One kept connection to the guest server of a desktop."""

    def __init__(self, machine: XvfbMachine) -> None:
        where = machine.endpoints()
        self._connection = http.client.HTTPConnection(where.host, where.server, timeout=READY_SECONDS)

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return data

    def open_calc(self) -> None:
        """Returns when the sheet is the active window."""
        self.ask("POST", "/setup/launch", {"command": CALC})
        deadline = time.monotonic() + READY_SECONDS
        while b"Calc" not in self.ask("GET", "/v1/window"):
            if time.monotonic() > deadline:
                raise SystemExit(f"Calc did not come up within {READY_SECONDS:g} s.")
            time.sleep(0.5)

    def hang_up(self) -> None:
        """The next request connects again."""
        self._connection.close()

    def shot(self, codec: str = "jpeg") -> bytes:
        return self.ask("GET", f"/v1/screenshot?format={codec}")

    def ours(self, codec: str, repeat: int) -> list[float]:
        """Seconds of each screenshot."""
        spent = []
        for _ in range(repeat):
            began = time.perf_counter()
            self.shot(codec)
            spent.append(time.perf_counter() - began)
        return spent

    def stock(self, repeat: int) -> list[float]:
        code = STOCK.format(repeat=repeat)
        told = json.loads(self.ask("POST", "/execute", {"command": ["python", "-c", code], "shell": False}))
        assert told["returncode"] == 0, told
        return [float(line) for line in told["output"].split()]


def median_ms(clients: list[Client], work: Callable[[Client], list[float]]) -> float:
    """Over all desktops, which work at the same time, each on a fresh connection: idle ones were hung up."""
    for client in clients:
        client.hang_up()
    with ThreadPoolExecutor(len(clients)) as pool:
        return 1000 * statistics.median(second for spent in pool.map(work, clients) for second in spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--desktops", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--size", default="1920x1080")
    given = parser.parse_args()
    width, height = map(int, given.size.split("x"))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        options = XvfbOptions(screen=(width, height), run_root=Path(folder))
        clients = []
        for _ in range(given.desktops):
            machine = XvfbMachine(options)
            stack.callback(machine.stop)
            machine.start()
            clients.append(Client(machine))
        for client in clients:
            client.open_calc()
        time.sleep(5)  # the sheets draw to the end
        print(f"{given.desktops} desktops with Calc, {given.size}, medians of {given.repeat} screenshots each")
        baseline = median_ms(clients, lambda client: client.stock(given.repeat))
        print(f"  {'baseline: pyautogui.screenshot through scrot, PNG':<54}{baseline:>8.1f} ms")
        for codec in ("jpeg", "png", "webp"):
            spent = median_ms(clients, lambda client, codec=codec: client.ours(codec, given.repeat))
            print(f"  {f'/v1/screenshot, {codec}':<54}{spent:>8.1f} ms{baseline / spent:>8.1f}x")


if __name__ == "__main__":
    main()
