"""The X server dies and comes back, the accessibility bus dies; the guest server is told to go."""

import contextlib
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.envs.server.guest.desk import desktop, end, missing, until, xvfb


@pytest.fixture(autouse=True)
def _desktops() -> None:
    if reason := missing():
        pytest.skip(reason)


def test_a_lost_display_is_said_and_found_again(tmp_path: Path) -> None:
    with desktop(tmp_path / "home", 640, 480) as desk:
        click = {"type": "click", "x": 5, "y": 6}
        assert desk.get("/screenshot").status_code == 200
        assert desk.post("/v1/action", click).status_code == 200
        end(desk.processes[0])
        for _ in range(2):
            assert desk.get("/v1/health").status_code == 503
            assert desk.get("/screenshot").status_code == 503
            answer = desk.post("/v1/action", click)
            assert answer.status_code == 503
            assert "X server" in answer.json()["message"]
        desk.processes[0], _ = xvfb(800, 600, desk.env["DISPLAY"])
        until(lambda: desk.get("/v1/health").status_code == 200)
        assert desk.post("/screen_size").json() == {"width": 800, "height": 600}
        assert desk.get("/screenshot").status_code == 200
        assert desk.post("/v1/action", click).status_code == 200
        assert desk.get("/cursor_position").json() == [5, 6]


def test_a_bus_that_is_gone_is_an_empty_tree_to_agents_and_an_error_to_evaluators(tmp_path: Path) -> None:
    with desktop(tmp_path / "home", 640, 480) as desk:
        end(desk.processes[1])
        told = desk.get("/v1/accessibility")
        assert told.status_code == 200
        assert told.json()["elements"] == 0
        assert desk.get("/v1/marks").json()["marks"] == []
        assert desk.get("/v1/terminal").json() == {"terminal": None}
        assert desk.get("/accessibility").status_code == 503


def test_a_server_that_is_told_to_go_does_not_wait_for_children(tmp_path: Path) -> None:
    with desktop(tmp_path / "home", 640, 480) as desk:
        begun = tmp_path / "begun"

        def hang() -> None:
            with contextlib.suppress(httpx.TransportError):  # the server may hang up before it answers
                desk.post("/execute", {"command": f"touch {begun}; sleep 100", "shell": True})

        waiting = threading.Thread(target=hang)
        waiting.start()
        until(begun.exists)
        started = time.monotonic()
        desk.server.terminate()
        desk.server.wait(20)
        assert time.monotonic() - started < 10
        waiting.join(10)
