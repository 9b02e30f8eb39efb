"""Bad requests get a clear 4xx and leave the server well."""

import json

import httpx
import pytest

from tests.envs.server.guest.desk import Desk

POSTS = [
    "/execute",
    "/setup/execute",
    "/execute_with_verification",
    "/run_python",
    "/run_bash_script",
    "/list_directory",
    "/file",
    "/window_size",
    "/setup/upload",
    "/setup/launch",
    "/setup/open_file",
    "/setup/activate_window",
    "/setup/close_window",
    "/setup/change_wallpaper",
    "/setup/download_file",
    "/v1/action",
    "/v1/code",
]
BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"command": 5, "path": 5, "code": 5, "script": 5, "window_name": 5, "type": 5, "url": 5}',
    b'{"command": [], "path": "", "code": "", "script": "", "window_name": ""}',
    b'{"command": ["a\\u0000b"], "path": "a\\u0000", "code": "\\u0000", "script": "\\u0000", "window_name": "\\u0000"}',
    b'{"command": ["\\ud800"], "path": "\\ud800", "code": "\\ud800", "script": "\\ud800", "window_name": "\\ud800"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("path", POSTS)
def test_malformed_bodies_are_refused(desk: Desk, path: str) -> None:
    for body in BODIES:
        answer = desk.client.post(desk.url + path, content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, (path, body[:80], answer.text)
        assert answer.json()["message"]
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    answer = desk.client.post(desk.url + path, content=b"--x\r\nbroken", headers=multipart)
    assert 400 <= answer.status_code < 500
    assert desk.get("/v1/health").status_code == 200


def test_bodies_over_the_limit_are_refused_announced_or_not(desk: Desk) -> None:
    body = b'{"code": "' + b" " * (9 * 2**20) + b'"}'
    assert desk.client.post(desk.url + "/v1/code", content=body).status_code == 413

    def pieces() -> object:
        yield from (body[start : start + 65536] for start in range(0, len(body), 65536))

    try:
        status = desk.client.post(desk.url + "/v1/code", content=pieces()).status_code  # type: ignore[arg-type]
    except httpx.WriteError:
        status = 413  # the server hung up while it was still being written to
    assert status == 413
    assert desk.get("/v1/health").status_code == 200


def test_unknown_paths_and_methods(desk: Desk) -> None:
    assert desk.get("/no/such").status_code == 404
    assert desk.get("/execute").status_code == 405
    assert json.loads(desk.post("/screenshot").text)["status"] == "error"


@pytest.mark.parametrize("limit", ["0", "-1", "1e3", "x", "9" * 30])
def test_limits_are_whole_numbers(desk: Desk, limit: str) -> None:
    assert desk.get("/v1/accessibility", limit=limit).status_code == 400
