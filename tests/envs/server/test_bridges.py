"""Clients of the two older protocols, written as those clients are written."""

import base64
import io
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx
import pytest
from PIL import Image

from flywheel.actions.computer_use import ComputerUse
from flywheel.actions.pyautogui_script import write_script
from flywheel.envs.server.bridges import read_action
from flywheel.errors import ActionError
from flywheel.types import Click, Code, Done, Key, Size, Task, Type, Wait
from tests.envs.server.serving import SCREEN, Served, serving, solution, tasks


class CookbookClient:
    """As the cookbook's rollouts talk: urllib, JSON, no heartbeat, no token."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, endpoint: str, data: Any) -> Any:
        body = json.dumps(data).encode()
        request = Request(self.url + endpoint, data=body, headers={"Content-Type": "application/json"}, method="POST")
        with urlopen(request, timeout=120) as answer:
            return json.loads(answer.read().decode())


def osworld(task: Task) -> dict[str, Any]:
    """A task as OSWorld writes it."""
    return {
        "id": task.id,
        "snapshot": "init",
        "instruction": task.instruction,
        "config": [dict(step) for step in task.config],
        "evaluator": dict(task.evaluator),
    }


@pytest.mark.parametrize("words", ["pyautogui", "tool_call"])
def test_the_cookbooks_client_plays_a_task(served: Served, words: str) -> None:
    (task,) = tasks()
    client = CookbookClient(served.url)
    seen = client.post("/reset", {"task_config": osworld(task), "env_config": {"screen_size": [1920, 1080], "x": 1}})
    episode = seen["episode_id"]
    assert seen["instruction"] == task.instruction
    assert seen["accessibility_tree"].startswith("role\t"), "these clients expect the tree unless they say otherwise"
    assert Image.open(io.BytesIO(base64.b64decode(seen["screenshot_base64"]))).size == SCREEN
    assert httpx.get(f"{served.url}/health").json()["episodes"] >= 1
    for number, action in enumerate(solution(task)):
        said = write_script(action, SCREEN) if words == "pyautogui" else ComputerUse().format(action, SCREEN)
        seen = client.post("/step", {"episode_id": episode, "action": said, "pause": 0})
        assert (seen["reward"], seen["step"], seen["info"]) == (0.0, number + 1, {"executed": True})
        assert seen["done"] == isinstance(action, Done)
    assert client.post("/render", {"episode_id": episode})["screenshot_base64"] == seen["screenshot_base64"]
    assert client.post("/evaluate", {"episode_id": episode}) == {"reward": 1.0}
    assert client.post("/evaluate", {"episode_id": episode}) == {"reward": 1.0}
    assert client.post("/close", {"episode_id": episode})["status"] == "closed"
    with pytest.raises(HTTPError) as gone:
        client.post("/step", {"episode_id": episode, "action": "WAIT"})
    assert gone.value.code == 404
    assert "over" in json.loads(gone.value.read())["error"]


def test_fail_reaches_the_desktop(served: Served) -> None:
    """The original keeps DONE and FAIL to itself, so an infeasible task can never score."""
    client = CookbookClient(served.url)
    (task,) = tasks()
    impossible = osworld(task) | {"evaluator": {"func": "infeasible"}}
    for word, reward in (("FAIL", 1.0), ("DONE", 0.0)):
        episode = client.post("/reset", {"task_config": json.dumps(impossible), "env_config": {}})["episode_id"]
        assert client.post("/step", {"episode_id": episode, "action": word})["done"]
        assert client.post("/evaluate", {"episode_id": episode}) == {"reward": reward}
        client.post("/close", {"episode_id": episode})


def test_what_cannot_be_read_changes_nothing_and_is_said(served: Served) -> None:
    client = CookbookClient(served.url)
    first = client.post("/reset", {"task_config": osworld(tasks()[0])})
    for action in ("import os; os.remove('/')", "", {"action": "fly"}, "pyautogui.click(1, 2); pyautogui.click(3, 4)"):
        seen = client.post("/step", {"episode_id": first["episode_id"], "action": action})
        assert not seen["info"]["executed"]
        assert seen["info"]["error"]
        assert seen["screenshot_base64"] == first["screenshot_base64"]
    client.post("/close", {"episode_id": first["episode_id"]})


def test_a_failure_is_never_a_reward(served: Served) -> None:
    client = CookbookClient(served.url)
    broken = osworld(tasks()[0]) | {"evaluator": {"func": "no_such_metric"}}
    episode = client.post("/reset", {"task_config": broken})["episode_id"]
    with pytest.raises(HTTPError) as failed:
        client.post("/evaluate", {"episode_id": episode})
    assert failed.value.code == 500
    client.post("/close", {"episode_id": episode})
    free = served.get("/v1/health")["free"]
    with pytest.raises(HTTPError) as failed:
        client.post("/reset", {"task_config": {"id": "a", "config": [], "platform": "windows"}})
    assert failed.value.code == 500
    assert "windows" in json.loads(failed.value.read())["error"]
    served.wait_for(free=free)


def test_the_session_bridge_plays_several_tasks_on_one_desktop(served: Served) -> None:
    http = httpx.Client(base_url=served.url, timeout=60)
    session = http.post("/envs", json={}).json()["session_id"]
    for task in tasks(2):
        http.post(f"/envs/{session}/reset", json={"task_config": osworld(task)}).raise_for_status()
        for action in solution(task):
            said = {"action": write_script(action, SCREEN), "pause": 0}
            seen = http.post(f"/envs/{session}/step", json=said).json()
        assert http.get(f"/envs/{session}/obs").json()["screenshot_base64"] == seen["screenshot_base64"]
        assert http.post(f"/envs/{session}/evaluate").json() == {"reward": 1.0}
    assert http.post(f"/envs/{session}/close").status_code == 200
    assert http.get(f"/envs/{session}/obs").status_code == 404
    assert http.post("/envs/nobody/step", json={"action": "WAIT"}).json() == {"error": "There is no such episode."}


def test_a_client_that_vanishes_loses_its_desktop_and_a_live_one_does_not(tmp_path: Path) -> None:
    with serving(tmp_path, "-n", "1", "--bridge-ttl", "2") as served:
        client = CookbookClient(served.url)
        first = client.post("/reset", {"task_config": osworld(tasks()[0])})["episode_id"]
        for _ in range(3):
            assert client.post("/step", {"episode_id": first, "action": "WAIT", "pause": 0})["info"]["executed"]
        second = client.post("/reset", {"task_config": osworld(tasks()[0])})["episode_id"]  # waits for the ttl
        assert second != first
        with pytest.raises(HTTPError) as gone:
            client.post("/step", {"episode_id": first, "action": "WAIT"})
        assert "silent" in json.loads(gone.value.read())["error"]


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("pyautogui.click(10, 20)", Click(10, 20)),
        ("import pyautogui; pyautogui.click(10, 20)", Click(10, 20)),
        ("pyautogui.typewrite('hi')", Type("hi")),
        ("pyautogui.hotkey('ctrl', 's')", Key(("ctrl", "s"))),
        ("Action: open it\n<answer>pyautogui.doubleClick(1, 2)</answer>", Click(1, 2, count=2)),
        ("```python\npyautogui.rightClick(3, 4)\n```", Click(3, 4, "right")),
        ("DONE", Done()),
        ("FAIL", Done("failure")),
        ("WAIT", Wait()),
        ({"action": "left_click", "coordinate": [500, 500]}, Click(80, 64)),
        ({"name": "computer_use", "arguments": {"action": "wait", "time": 2}}, Wait(2)),
        ('<tool_call>{"name":"computer_use","arguments":{"action":"type","text":"a"}}</tool_call>', Type("a")),
    ],
)
def test_every_way_in_which_clients_speak(said: Any, action: Any) -> None:
    assert read_action(said, Size(160, 128), code=False) == action


def test_scripts_run_in_the_guest_where_there_is_one() -> None:
    script = "for i in range(3): pyautogui.press('down')"
    assert read_action(script, Size(160, 128), code=True) == Code(script, "python")
    with pytest.raises(ActionError):
        read_action(script, Size(160, 128), code=False)
    with pytest.raises(ActionError, match="tool call"):
        read_action("<tool_call>{}</tool_call>", Size(160, 128), code=True)
