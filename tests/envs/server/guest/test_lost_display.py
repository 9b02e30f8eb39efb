"""The X server dies and comes back."""

from pathlib import Path

import pytest

from tests.envs.server.guest.desk import desktop, end, missing, until, xvfb


def test_a_lost_display_is_said_and_found_again(tmp_path: Path) -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)
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
