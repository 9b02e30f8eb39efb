"""A real env server in a process of its own, and a client for tests that says exactly what it is told to."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.oracle import plan
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.envs.wire import action_to_json, task_to_json
from flywheel.processes import is_alive
from flywheel.types import Action, Size, Task

COMMAND = [sys.executable, "-c", "from flywheel.cli.app import main; main()", "desktops", "serve", "--port", "0"]
SCREEN = Size(160, 128)


@dataclass
class Served:
    """A running server; `said` is what it wrote to standard error, line by line."""

    url: str
    process: "subprocess.Popen[str]"
    root: Path
    said: list[str] = field(default_factory=list)

    def get(self, path: str) -> Any:
        answer = httpx.get(self.url + path, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def workers(self) -> list[int]:
        """Process ids by desktop."""
        return [each["pid"] for each in self.get("/v1/desktops")]

    def wait_for(self, patience: float = 30, **health: Any) -> None:
        """Until /v1/health says so."""
        deadline = time.monotonic() + patience
        while (now := self.get("/v1/health")) | health != now:
            assert time.monotonic() < deadline, now
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait; its status."""
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def serving(root: Path, *arguments: str, token: str | None = None, ready: bool = True) -> Iterator[Served]:
    """A server on a free port with its folders under `root`; afterwards nothing of it lives."""
    environment = {**os.environ, "FLYWHEEL_DESKTOPS": str(root), "FLYWHEEL_DESKTOPS_TOKEN": token or ""}
    process = subprocess.Popen([*COMMAND, *arguments], env=environment, stderr=subprocess.PIPE, text=True)
    served = Served("", process, root)
    assert process.stderr is not None
    for line in process.stderr:
        served.said.append(line.strip())
        if line.startswith("Serving "):
            served.url = line.split(" at ")[1].strip()
            break
    assert served.url, served.said
    threading.Thread(target=lambda: served.said.extend(process.stderr or ()), daemon=True).start()
    try:
        if ready and token is None:
            served.wait_for(free=served.get("/v1/health")["desktops"])
        yield served
    finally:
        process.send_signal(signal.SIGINT)  # a live lease would hold up SIGTERM
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Native:
    """The native protocol, one call a method, answers as they are."""

    def __init__(self, url: str, **headers: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60, headers=headers)

    def lease(self, **asked: Any) -> "Held":
        answer = self.http.post("/v1/leases", json=asked)
        assert answer.status_code == 201, answer.text
        return Held(self, answer.json()["lease"], answer.json()["secret"])


@dataclass
class Held:
    """A lease."""

    client: Native
    id: str
    secret: str

    def post(self, command: str, body: Any = None, secret: str | None = None) -> httpx.Response:
        return self.client.http.post(
            f"/v1/leases/{self.id}/{command}",
            json={} if body is None else body,
            headers={"X-Lease-Secret": self.secret if secret is None else secret},
        )

    def reset(self, task: Task, **more: Any) -> httpx.Response:
        return self.post("reset", {"task": task_to_json(task), **more})

    def step(self, index: int, action: Action) -> httpx.Response:
        return self.post("step", {"index": index, "action": action_to_json(action)})

    def observe(self) -> httpx.Response:
        return self.client.http.get(f"/v1/leases/{self.id}/observation", headers={"X-Lease-Secret": self.secret})

    def release(self) -> httpx.Response:
        return self.client.http.delete(f"/v1/leases/{self.id}", headers={"X-Lease-Secret": self.secret})


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, kind and message of a refusal; anything else is none."""
    error = answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"
    assert error["message"][-1] == ".", error
    return answer.status_code, error["kind"], error["message"]


def tasks(count: int = 1, seed: int = 0, layout: str = "roomy") -> list[Task]:
    return generate_tasks(
        split="train", count=count, seed=seed, screen=SCREEN, layout=layout, families=("menu",), levels=(2,)
    )


def solution(task: Task) -> list[Action]:
    return [step.action for step in plan(SimulatedDesktop(), task)]


def wait_dead(*pids: int, seconds: float = 10.0) -> None:
    """Until none of these processes lives."""
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)
