"""What no client of ours sends: wrong tokens, bodies of any size and shape, everything the OpenAPI document allows."""

import json
import random
import socket
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.envs.wire import task_to_json
from tests.envs.server.serving import Held, Native, Served, error_of, serving, tasks

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def native(served: Served) -> Native:
    return Native(served.url)


# --- tokens ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Bound to every address, so it had to have a token."""
    with serving(tmp_path_factory.mktemp("guarded"), "--host", "0.0.0.0", token="s3cret", ready=False) as running:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        yield running


def test_without_the_token_nothing_is_answered(guarded: Served) -> None:
    for path in ("/v1/health", "/v1/leases", "/openapi.json", "/health", "/nowhere"):
        assert error_of(httpx.get(guarded.url + path))[0] == 401
    for sent in ("Bearer wrong", "Bearer", "s3cret", "Basic s3cret", "Basic !!!", "Bearer s3cre", "Bearer s3crett"):
        answer = httpx.get(f"{guarded.url}/v1/health", headers={"Authorization": sent})
        assert error_of(answer)[:2] == (401, "request")
        assert "s3cret" not in answer.text


def test_with_the_token_everything_is(guarded: Served) -> None:
    assert httpx.get(f"{guarded.url}/v1/health", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    url = guarded.url.replace("http://", "http://flywheel:s3cret@")
    assert httpx.get(f"{url}/health").json()["status"] == "ok", "as the password in the URL of a bridge's client"


def test_workers_never_see_the_token(guarded: Served) -> None:
    answer = httpx.get(f"{guarded.url}/v1/desktops", headers={"Authorization": "Bearer s3cret"})
    for each in answer.json():
        assert b"s3cret" not in Path(f"/proc/{each['pid']}/environ").read_bytes()
        assert b"s3cret" not in Path(f"/proc/{each['pid']}/cmdline").read_bytes()


# --- bodies -------------------------------------------------------------------------------------------------------


def test_a_body_of_100_mb_is_refused_and_never_held(native: Native, served: Served) -> None:
    lease = native.lease()
    before = _peak_mb(served.process.pid)

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    for content in (b" " * (100 << 20), chunks()):
        try:
            answer = httpx.post(
                f"{served.url}/v1/leases/{lease.id}/reset",
                content=content,
                headers={**JSON, "X-Lease-Secret": lease.secret},
                timeout=60,
            )
            assert error_of(answer)[:2] == (413, "request")
        except httpx.WriteError:
            pass  # the server hung up while the client was still writing, before it read the answer
    assert _peak_mb(served.process.pid) - before < 30
    assert lease.reset(tasks()[0]).status_code == 200, "the lease is as it was"
    lease.release()


def _peak_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def test_a_large_body_is_told_413_before_it_is_sent(served: Served) -> None:
    where = urlsplit(served.url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        head = (
            "POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 104857600\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


MALFORMED = """
{
{"ttl_s": 5
[]
null
5
"text"
nonsense
{"ttl_s": NaN}
{"ttl_s": 1e999}
{"ttl_s": "soon"}
{"ttl_s": 0}
{"wait_s": 1e9}
{"unknown": 1}
{"apps": "gimp"}
{"apps": [1]}"""


@pytest.mark.parametrize(
    "body", [*MALFORMED.encode().splitlines(), b"\xff\xfe", b"[" * 100_000, b'{"ttl_s":' + b"9" * 9999]
)
def test_malformed_requests_are_400_in_one_sentence(native: Native, body: bytes) -> None:
    status, kind, message = error_of(native.http.post("/v1/leases", content=body, headers=JSON))
    assert (status, kind) == (400, "request")
    assert "\n" not in message


def test_malformed_commands_are_400_and_change_nothing(native: Native) -> None:
    (task,) = tasks()
    lease = native.lease()
    whole = task_to_json(task)
    for body in (
        {},
        {"task": {}},
        {"task": 5},
        {"task": whole | {"id": 5}},
        {"task": whole, "observe": {"quality": 0}},
    ):
        assert error_of(lease.post("reset", body))[:2] == (400, "request")
    lease.reset(task)
    for action in (None, {}, "click", {"type": "fly"}, {"type": "click", "x": 1.5, "y": 1}, {"type": "type"}):
        assert error_of(lease.post("step", {"index": 0, "action": action}))[:2] == (400, "request")
    for index in (-1, "0", 1.5, None):
        assert error_of(lease.post("step", {"index": index, "action": {"type": "wait"}}))[:2] == (400, "request")
    assert error_of(lease.post("step", {"index": 0, "action": {"type": "wait"}, "pause_s": 61}))[0] == 400
    assert lease.post("step", {"index": 0, "action": {"type": "wait"}}).status_code == 200
    lease.release()


def test_paths_and_methods_that_are_not_there(native: Native) -> None:
    assert error_of(native.http.get("/v2/health"))[:2] == (404, "request")
    assert error_of(native.http.get("/"))[:2] == (404, "request")
    assert error_of(native.http.get("/v1/leases/"))[:2] == (404, "request")
    assert error_of(native.http.put("/v1/leases"))[:2] == (405, "request")
    assert native.http.get("/envs/unknown").json()["error"], "a bridge's error is text"


# --- fuzzing from the OpenAPI document -------------------------------------------------------------------------------


def values(schema: dict[str, Any], document: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema describes, some of them almost."""
    if "$ref" in schema:
        return values(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
    if "anyOf" in schema:
        return st.one_of(*(values(each, document) for each in schema["anyOf"]), anything)
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | anything

    def items() -> st.SearchStrategy[Any]:
        return st.lists(values(schema.get("items", {}), document), max_size=3)

    def fields() -> st.SearchStrategy[Any]:
        if "properties" not in schema:
            return st.dictionaries(st.sampled_from(["type", "x", "y", "text", "id", "config"]), anything, max_size=4)
        return st.fixed_dictionaries({name: values(each, document) for name, each in schema["properties"].items()})

    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "integer": lambda: st.integers(-2, 3) | st.integers(),
        "number": lambda: st.floats(0, 2) | st.floats(allow_nan=False),
        "string": lambda: st.text(max_size=30),
        "boolean": st.booleans,
        "null": st.none,
        "array": items,
        "object": fields,
    }
    right = kinds.get(schema.get("type", ""), lambda: anything)()
    return st.integers(0, 9).flatmap(lambda n: anything if n == 0 else right)


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in sorted(document["paths"].items())
        for method, operation in sorted(methods.items())
    ]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Native, Held, dict[str, Any]]]:
    """A server of its own, with a live lease that half of the requests are for."""
    with serving(tmp_path_factory.mktemp("fuzzed"), "-n", "2", "--bridge-ttl", "1") as running:
        native = Native(running.url)
        native.http.timeout = httpx.Timeout(100)
        lease = native.lease(ttl_s=3600)
        lease.reset(tasks()[0])
        yield native, lease, running.get("/openapi.json")
        assert not [line for line in running.said if "Traceback" in line], running.said


def test_the_document_names_every_error_and_every_path(served: Served) -> None:
    document = served.get("/openapi.json")
    paths = set(document["paths"])
    assert {
        "/v1/health",
        "/v1/leases",
        "/v1/leases/{lease}/step",
        "/reset",
        "/evaluate",
        "/envs/{session}/obs",
    } <= paths
    step = document["paths"]["/v1/leases/{lease}/step"]["post"]["responses"]
    assert {"200", "400", "401", "403", "404", "409", "410", "413", "422", "503"} <= set(step)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nothing_that_the_document_describes_breaks_the_server(
    fuzzed: tuple[Native, Held, dict[str, Any]], data: st.DataObject
) -> None:
    native, lease, document = fuzzed
    method, path, operation = data.draw(st.sampled_from(operations(document)), label="operation")
    name = data.draw(st.sampled_from([lease.id, f"{lease.id}.{lease.secret}"]) | st.text(string.printable, max_size=9))
    where = path.replace("{lease}", quote(name, safe="")).replace("{session}", quote(name, safe=""))
    if (method, path) == ("DELETE", "/v1/leases/{lease}") or path.endswith("/close"):
        where = where.replace(lease.id, "0" * 16)  # it is to live on
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = data.draw(values(schema, document), label="body")
        if isinstance(body, dict):
            body.pop("wait_s", None)  # would only wait
    secret = data.draw(st.sampled_from([lease.secret, "wrong"]))
    text = json.dumps(body)
    if data.draw(st.integers(0, 4)) == 0:
        text = text[: random.Random(len(text)).randrange(len(text) + 1)]
    headers = {**JSON, "X-Lease-Secret": secret}
    answer = native.http.request(method, where, content=text, headers=headers)
    failed = 503 if path.startswith("/v1") else 500  # the bridges' failures are 500 by their own protocols
    assert answer.status_code < 500 or answer.status_code == failed, (answer.status_code, answer.text)
    assert "bug" not in answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert isinstance(error, str) or set(error) == {"kind", "message"}
    else:
        _give_back(native, answer)
        allowed = {int(status) for status in operation["responses"] if status.isdecimal()}
        assert answer.status_code in allowed


def _give_back(native: Native, answer: httpx.Response) -> None:
    """A desktop that was handed out by chance, so that the next request for one need not wait."""
    told = answer.json() if answer.headers.get("content-type") == "application/json" else None
    if isinstance(told, dict) and "secret" in told:
        Held(native, told["lease"], told["secret"]).release()
    elif isinstance(told, dict) and "session_id" in told:
        native.http.post(f"/envs/{told['session_id']}/close")
    elif isinstance(told, dict) and told.get("episode_id") and "screenshot_base64" in told:
        native.http.post("/close", json={"episode_id": told["episode_id"]})
