"""The life of a lease over real HTTP: order, repetition, strangers, silence."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flywheel.envs.wire import FRAME_TYPE, action_to_json, decode_observation, decode_result, task_to_json
from flywheel.types import Click, Done, Task, Type, Wait
from tests.envs.server.serving import SCREEN, Held, Native, Served, error_of, serving, solution, tasks


@pytest.fixture
def native(served: Served) -> Native:
    return Native(served.url)


def test_a_lease_from_grant_to_release(native: Native, served: Served) -> None:
    (task,) = tasks()
    lease = native.lease(client="me", ttl_s=30)
    (listed,) = [each for each in served.get("/v1/leases") if each["lease"] == lease.id]
    assert (listed["client"], listed["task"], listed["steps"]) == ("me", None, 0)
    assert "secret" not in json.dumps(served.get("/v1/leases"))
    first = lease.reset(task)
    assert first.headers["content-type"] == FRAME_TYPE
    shot = decode_observation(first.content).screenshot
    assert shot is not None
    assert (shot.codec, shot.size) == ("png", SCREEN)
    for index, action in enumerate(solution(task)):
        result = decode_result(lease.step(index, action).content)
        assert result.executed
        assert decode_observation(lease.observe().content).screenshot == result.observation.screenshot
        assert index or result.observation.screenshot != shot, "the menu opened"
    assert lease.post("evaluate").json() == {"reward": 1.0}
    assert lease.post("heartbeat").json() == {"expires_in_s": 30.0}
    assert lease.release().status_code == 204
    assert lease.release().status_code == 204, "again is fine"
    assert lease.id not in json.dumps(served.get("/v1/leases"))


def test_the_same_step_again_is_answered_and_not_executed(native: Native) -> None:
    (task,) = tasks()
    lease = native.lease()
    lease.reset(task)
    actions = solution(task)
    answers = [lease.step(index, action) for index, action in enumerate(actions) for _ in range(3)]
    assert [answer.content for answer in answers[0::3]] == [answer.content for answer in answers[2::3]]
    assert lease.post("evaluate").json() == {"reward": 1.0}, "a step executed twice would be an unwanted event"
    assert lease.post("evaluate").json() == {"reward": 1.0}, "the stored answer"
    lease.release()


def test_a_step_whose_connection_was_cut_is_executed_once(native: Native, served: Served) -> None:
    """The request arrives whole, its answer is never read; then the client asks again."""
    (task,) = tasks()
    lease = native.lease()
    lease.reset(task)
    for index, action in enumerate(solution(task)):
        _send_and_hang_up(served, lease, {"index": index, "action": action_to_json(action)})
        assert decode_result(lease.step(index, action).content).executed
    assert lease.post("evaluate").json() == {"reward": 1.0}
    lease.release()


def _send_and_hang_up(served: Served, lease: Held, body: object) -> None:
    where, text = urlsplit(served.url), json.dumps(body).encode()
    with socket.create_connection((where.hostname, where.port)) as connection:
        head = (
            f"POST /v1/leases/{lease.id}/step HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"X-Lease-Secret: {lease.secret}\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        connection.sendall(head.encode() + text)


def test_set_up_again_with_the_same_request_is_the_stored_answer(native: Native, served: Served) -> None:
    first, second = tasks(2)
    lease = native.lease()
    before = served.get("/v1/desktops")
    answer = lease.reset(first, request="once")
    assert lease.reset(first, request="once").content == answer.content
    lease.step(0, Type("x"))
    assert lease.reset(second, request="twice").content != answer.content
    assert lease.step(0, Wait(0.0)).status_code == 200, "steps count from 0 again"
    played = sum(each["episodes"] for each in served.get("/v1/desktops")) - sum(each["episodes"] for each in before)
    assert played == 2
    lease.release()


def test_steps_out_of_order_are_refused(native: Native) -> None:
    (task,) = tasks()
    lease = native.lease()
    assert error_of(lease.step(0, Wait(0.0)))[:2] == (409, "request")
    assert error_of(lease.post("evaluate"))[0] == 409
    assert error_of(lease.observe())[0] == 409
    lease.reset(task)
    assert error_of(lease.step(1, Wait(0.0))) == (409, "request", "Step 1 is out of order: the next one is 0.")
    assert lease.step(0, Wait(0.0)).status_code == 200
    assert error_of(lease.step(2, Wait(0.0)))[0] == 409
    lease.post("evaluate")
    assert error_of(lease.step(1, Wait(0.0)))[0] == 409, "judged"
    lease.release()


def test_two_clients_on_one_lease(native: Native, served: Served) -> None:
    """A stranger is refused; of those who share the secret one takes the step, the others are told."""
    (task,) = tasks()
    mine = native.lease()
    mine.reset(task)
    for secret in ("", "wrong", mine.secret + "x"):
        assert error_of(mine.post("step", {"index": 0, "action": {"type": "wait"}}, secret=secret))[0] == 403
    for answer in (mine.client.http.delete(f"/v1/leases/{mine.id}"), Held(native, mine.id, "wrong").observe()):
        assert error_of(answer)[:2] == (403, "request")

    def take(x: int) -> int:
        return Held(Native(served.url), mine.id, mine.secret).step(0, Click(x, 100)).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(take, range(8)))
    assert answers == [200, *[409] * 7]
    mine.release()


def test_unknown_and_ended_leases(native: Native) -> None:
    (task,) = tasks()
    nobody = Held(native, "0" * 16, "secret")
    for answer in (nobody.step(0, Wait(0.0)), nobody.release(), nobody.observe(), nobody.post("heartbeat")):
        assert error_of(answer)[:2] == (404, "request")
    lease = native.lease()
    lease.reset(task)
    lease.release()
    for answer in (lease.step(0, Wait(0.0)), lease.reset(task), lease.observe(), lease.post("evaluate")):
        assert error_of(answer) == (410, "request", "The lease was released by its client.")


def test_failures_say_whose_fault_they_are(native: Native) -> None:
    (task,) = tasks()
    lease = native.lease()
    status, kind, message = error_of(lease.reset(Task("elsewhere", "Do it", "os", platform="ubuntu")))
    assert (status, kind) == (422, "setup")
    assert "ubuntu" in message
    assert error_of(lease.step(0, Wait(0.0)))[0] == 409, "there is no episode after a failed set-up"
    broken = Task(task.id, task.instruction, task.domain, task.config, {"func": "no_such_metric"})
    lease.reset(broken)
    lease.step(0, Done())
    for _ in range(2):
        assert error_of(lease.post("evaluate"))[:2] == (422, "evaluator")
    outside = decode_result(_again(lease, task).step(0, Click(4000, 0)).content)
    assert not outside.executed
    assert outside.error == "The point (4000, 0) is outside the 160 x 128 screen."
    assert error_of(lease.reset(task, observe={"image": "jpeg"}))[0] == 400, "not among its images"
    lease.release()


def _again(lease: Held, task: Task) -> Held:
    assert lease.reset(task).status_code == 200
    return lease


def test_what_a_server_has_not_is_refused_at_once(native: Native) -> None:
    for asked in ({"platform": "windows"}, {"apps": ["gimp"]}):
        status, kind, message = error_of(native.http.post("/v1/leases", json=asked))
        assert (status, kind) == (422, "setup")
        assert "windows" in message or "gimp" in message


def test_silence_ends_a_lease_and_heartbeats_keep_it(tmp_path: Path) -> None:
    (task,) = tasks()
    with serving(tmp_path, "-n", "2") as served:
        native, over = Native(served.url), threading.Event()
        silent, beating = native.lease(ttl_s=4), native.lease(ttl_s=4)

        def beat() -> None:
            heart = Held(Native(served.url), beating.id, beating.secret)
            while not over.wait(0.3):
                heart.post("heartbeat")

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            silent.reset(task), beating.reset(task)
            served.wait_for(leases=1, free=1)
            time.sleep(1)
            status, _, message = error_of(silent.step(0, Wait(0.0)))
            assert (status, message) == (410, "The lease expired: its client was silent for 4 seconds.")
            assert beating.step(0, Wait(0.0)).status_code == 200
        finally:
            over.set()
            thread.join()


def test_when_full_callers_wait_in_order_or_are_told_and_nobody_is_evicted(tmp_path: Path) -> None:
    (task,) = tasks()
    with serving(tmp_path, "-n", "1") as served:
        native = Native(served.url)
        live = native.lease(ttl_s=60)
        live.reset(task)
        started = time.monotonic()
        full = native.http.post("/v1/leases", json={"wait_s": 0.5})
        assert error_of(full)[:2] == (429, "request")
        assert float(full.headers["retry-after"]) > 0
        assert time.monotonic() - started >= 0.5
        got: list[str] = []

        def wait(name: str) -> None:
            lease = Native(served.url).lease(wait_s=30)
            got.append(name)
            lease.release()

        waiting = []
        for name in ("first", "second", "third"):
            waiting.append(threading.Thread(target=wait, args=(name,)))
            waiting[-1].start()
            served.wait_for(waiting=len(waiting))
        assert live.step(0, Wait(0.0)).status_code == 200, "a live episode goes on"
        live.release()
        for thread in waiting:
            thread.join(30)
        assert got == ["first", "second", "third"]


def test_who_hangs_up_while_waiting_gets_no_desktop(tmp_path: Path) -> None:
    with serving(tmp_path, "-n", "1") as served:
        lease = Native(served.url).lease()
        where = urlsplit(served.url)
        body = b'{"wait_s": 20, "ttl_s": 3600}'
        with socket.create_connection((where.hostname, where.port)) as connection:
            head = (
                f"POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            served.wait_for(waiting=1)
        lease.release()
        served.wait_for(free=1, leases=0, waiting=0)


def test_a_desktop_comes_back_without_a_trace(native: Native) -> None:
    (task,) = tasks()
    shots = []
    for _ in range(6):
        lease = native.lease(wait_s=10)
        shots.append(lease.reset(task).content)
        lease.step(0, Type("traces"))
        lease.release()
    assert len(set(shots)) == 1


def test_tasks_travel_whole(native: Native) -> None:
    """Text of any kind, also what UTF-8 cannot hold."""
    (task,) = tasks()
    lease = native.lease()
    odd = task_to_json(task) | {
        "instruction": "na\u00efve \U0001f600 \u2028 \\ud800",
        "raw": {"a": [1e300, None, "\x00"]},
    }
    assert lease.post("reset", {"task": odd}).status_code == 200
    text = json.dumps({"index": 0, "action": {"type": "type", "text": "\ud800\U0001f600\x00"}})
    answer = native.http.post(
        f"/v1/leases/{lease.id}/step",
        content=text,
        headers={"X-Lease-Secret": lease.secret, "Content-Type": "application/json"},
    )
    assert answer.status_code in (200, 400), answer.text
    lease.release()
