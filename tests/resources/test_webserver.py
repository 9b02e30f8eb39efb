"""`flywheel dev`: ports, and the real web server coming and going."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from flywheel.errors import ConfigError
from flywheel.processes import family, is_alive
from flywheel.resources.webserver import dev, free_port

HOST = "127.0.0.1"


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.create_server((HOST, 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {taken} on {HOST} is in use"):
            free_port(HOST, taken)
        with pytest.raises(ConfigError, match="is in use"):
            dev(host=HOST, port=taken)
    assert free_port(HOST, taken) == taken
    assert free_port(HOST) >= 3000


def test_an_unknown_setting_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"did you mean sft\.steps"):
        dev(settings=["sft.step=3"])


def test_serves_the_definitions_and_leaves_nobody(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from flywheel.resources.webserver import dev
sys.exit(dev(settings=["home={tmp_path}/home", "flywheel.max_iterations=3"], port={port}))
"""
    served = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL, env=clean())
    try:
        locations = ask(port, "{workspaceOrError{... on Workspace{locationEntries{locationOrLoadError{__typename}}}}}")
        entries = locations["workspaceOrError"]["locationEntries"]
        assert [entry["locationOrLoadError"]["__typename"] for entry in entries] == ["RepositoryLocation"]
        nodes = ask(port, "{assetNodes{assetKey{path} partitionDefinition{description}}}")["assetNodes"]
        assert "trajectories" in {node["assetKey"]["path"][-1] for node in nodes}
        processes = family(served.pid)
        assert len(processes) > 4
    finally:
        served.send_signal(signal.SIGINT)
        assert served.wait(30) == 0
    deadline = time.monotonic() + 5
    while any(is_alive(pid) for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {path.name for path in tmp_path.iterdir()} == {"home"}


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}


def ask(port: int, query: str) -> dict:
    """The answer once the server is up, which takes 10 s on a quiet machine."""
    request = urllib.request.Request(
        f"http://{HOST}:{port}/graphql", json.dumps({"query": query}).encode(), {"content-type": "application/json"}
    )
    deadline = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert time.monotonic() < deadline, "the web server never came up"
            time.sleep(0.2)
