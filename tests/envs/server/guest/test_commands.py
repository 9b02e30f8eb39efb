"""Commands of tasks and agents run in children that can neither hang the server nor hurt it."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.envs.server.guest.desk import Desk, children, until


def _living(*pids: int) -> list[int]:
    """Those that run; the state of a zombie is Z."""
    stats = [stat for pid in pids if (stat := Path(f"/proc/{pid}/stat")).exists()]
    return [int(stat.parent.name) for stat in stats if ") Z " not in stat.read_text()]


def _timed(desk: Desk, path: str, body: object) -> tuple[dict[str, object], float]:
    started = time.monotonic()
    answer = desk.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json(), time.monotonic() - started


def test_commands_answer_as_osworlds_server_does(desk: Desk) -> None:
    assert desk.post("/execute", {"command": ["sh", "-c", "echo out; echo err >&2; exit 3"]}).json() == {
        "status": "success",
        "output": "out\n",
        "error": "err\n",
        "returncode": 3,
    }
    assert desk.post("/setup/execute", {"command": "echo $HOME", "shell": True}).json()["output"] == f"{desk.home}\n"
    assert desk.post("/execute", {"command": "echo 'one word'"}).json()["output"] == "one word\n"
    assert desk.post("/execute", {"command": ["echo", "~/x"]}).json()["output"] == f"{desk.home}/x\n"
    assert desk.execute("import platform; print(platform.system())")["output"] == "Linux\n"
    (desk.home / "size.py").write_text("import pyautogui; print(pyautogui.size().width)")
    assert desk.post("/execute", {"command": ["python3", str(desk.home / "size.py")]}).json()["output"] == "1280\n"
    assert desk.execute("print(pyautogui.size())")["output"] == "Size(width=1280, height=800)\n"


def test_a_command_that_cannot_start_is_an_error(desk: Desk) -> None:
    answer = desk.post("/execute", {"command": ["/no/such/program"]})
    assert answer.status_code == 500
    assert "no/such/program" in answer.json()["message"]


def test_a_hanging_command_is_killed_with_its_group(desk: Desk, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 300 & echo $! >> {pids}; echo $$ >> {pids}; echo begun; wait"
    told, seconds = _timed(desk, "/execute", {"command": ["sh", "-c", script], "timeout": 1})
    assert (told["status"], told["returncode"], told["output"]) == ("error", 124, "begun\n")
    assert seconds < 20
    until(lambda: not _living(*map(int, pids.read_text().split())))


def test_an_answer_does_not_wait_for_those_who_inherit_its_pipes(desk: Desk, tmp_path: Path) -> None:
    done = tmp_path / "done"
    told, seconds = _timed(
        desk,
        "/execute",
        {"command": f"(sleep 6; echo late; echo late >&2; touch {done}) & echo at once", "shell": True},
    )
    assert told["output"] == "at once\n"
    assert seconds < 5
    until(done.exists)  # it was not killed by a broken pipe


def test_a_command_that_shows_a_window_is_left_running(desk: Desk) -> None:
    told, seconds = _timed(desk, "/execute", {"command": ["xterm", "-T", "left running"]})
    assert told["returncode"] == 0
    assert seconds < 30  # of the 120 that it would be waited for
    assert "left running" in desk.titles()
    desk.post("/setup/close_window", {"window_name": "left running"})
    until(lambda: "left running" not in desk.titles())


def test_launch_returns_at_once_and_leaves_no_zombie(desk: Desk) -> None:
    started = time.monotonic()
    told = desk.post("/setup/launch", {"command": ["sleep", "5"]})
    assert told.text == "sleep 5 launched successfully"
    assert time.monotonic() - started < 4
    assert desk.post("/setup/launch", {"command": ["/no/such/app"]}).status_code == 500
    left = children(desk.server.pid)
    assert left
    until(lambda: not set(left) & set(children(desk.server.pid)))


def test_output_is_capped(desk: Desk) -> None:
    told = desk.post("/execute", {"command": "head -c 20000000 /dev/zero | tr '\\0' x", "shell": True}).json()
    assert len(told["output"]) == 4 * 2**20
    assert told["truncated"]


@pytest.mark.parametrize("path", ["/execute", "/run_python", "/v1/code"])
def test_agent_code_runs_in_a_child(desk: Desk, path: str) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    body = {"command": ["python", "-c", code]} if path == "/execute" else {"code": code}
    assert desk.post(path, body).status_code == 200
    assert desk.get("/v1/health").json()["ok"]
    parent = desk.post("/v1/code", {"code": "import os; print(os.getpid())"}).json()["output"]
    assert int(parent) != desk.server.pid


def test_code_of_both_languages(desk: Desk) -> None:
    answer = desk.post("/v1/code", {"code": "import sys; print('héllo'); sys.exit(2)"}).json()
    assert (answer["output"], answer["returncode"]) == ("héllo\n", 2)
    assert desk.post("/v1/code", {"code": "echo $((1+1))", "language": "bash"}).json()["output"] == "2\n"
    slow = desk.post("/v1/action", {"type": "code", "code": "while :; do :; done", "language": "bash", "timeout": 1})
    assert slow.json()["returncode"] == 124
    assert desk.post("/v1/code", {"code": "x", "language": "perl"}).status_code == 400
    assert "PYTHONPATH" not in desk.post("/v1/code", {"code": "env", "language": "bash"}).json()["output"]


def test_scripts_answer_as_osworlds_server_does(desk: Desk) -> None:
    assert desk.post("/run_python", {"code": "print(1)"}).json() == {
        "status": "success",
        "message": "1\n",
        "need_more": False,
        "output": "1\n",
        "error": "",
        "return_code": 0,
    }
    assert desk.post("/run_python", {"code": "1/0"}).json()["status"] == "error"
    script = {"script": "echo out; echo err >&2; pwd; exit 3", "timeout": 5, "working_dir": "/"}
    told = desk.post("/run_bash_script", script).json()
    assert told == {"status": "error", "output": "out\nerr\n/\n", "error": "", "returncode": 3}
    late = desk.post("/run_bash_script", {"script": "sleep 60", "timeout": 1}).json()
    assert late["returncode"] == -1
    assert desk.post("/run_bash_script", {"script": "true", "working_dir": "/no/such"}).status_code == 400


def test_verification_waits_for_a_window(desk: Desk) -> None:
    xterm = f"DISPLAY={desk.env['DISPLAY']} xterm -T verified >/dev/null 2>&1 &"
    body = {"command": f"(sleep 0.5; {xterm}) &", "shell": True, "check_interval": 0.1}
    answer = desk.post("/setup/execute_with_verification", {**body, "verification": {"window_exists": "VERIFIED"}})
    assert answer.json()["verification"] == "passed"
    never = {"command": ["true"], "verification": {"command_success": "false"}, "max_wait_time": 0.3}
    assert desk.post("/execute_with_verification", never | {"check_interval": 0.1}).status_code == 500
    desk.post("/setup/close_window", {"window_name": "verified"})


def test_hanging_commands_do_not_hold_up_screenshots(desk: Desk) -> None:
    with ThreadPoolExecutor(30) as pool:
        hanging = [pool.submit(desk.post, "/execute", {"command": ["sleep", "99"], "timeout": 4}) for _ in range(30)]
        time.sleep(0.5)
        assert desk.get("/screenshot").status_code == 200
        assert not any(each.done() for each in hanging)
        assert {each.result().json()["returncode"] for each in hanging} == {124}


def test_the_server_is_in_another_session_than_itschildren(desk: Desk) -> None:
    child = int(desk.post("/v1/code", {"code": "import os; print(os.getsid(0))"}).json()["output"])
    assert child != os.getsid(desk.server.pid)


def test_code_may_remove_itself(desk: Desk) -> None:
    assert desk.post("/v1/code", {"code": "import os; os.remove(__file__); print(1)"}).json()["output"] == "1\n"
