"""`flywheel desktops serve` and `ls`: what they refuse, and that they start light."""

import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Flywheel
from tests.cli.test_app import COMMAND, HEAVY, imported
from tests.envs.server.serving import Native, serving, tasks


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLYWHEEL_DESKTOPS_TOKEN", raising=False)
    monkeypatch.setenv("FLYWHEEL_DESKTOPS", str(tmp_path / "desktops"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", ""])
def test_others_are_let_in_only_with_a_token(flywheel: Flywheel, host: str) -> None:
    said = flywheel("desktops", "serve", "--host", host, "--token-env", "MY_TOKEN").refusal
    assert said == (
        f"Binding to {host} lets other machines in, and no token is set; put one into $MY_TOKEN or bind to 127.0.0.1."
    )


@pytest.mark.parametrize("backend", ["xvfb", "qemu", "remote", "gateway", "stock"])
def test_real_desktops_need_their_own_environment(flywheel: Flywheel, backend: str) -> None:
    said = flywheel("desktops", "serve", "--backend", backend).refusal
    assert said.endswith("is not there; run `flywheel desktops setup`.")


def test_a_port_that_is_taken(flywheel: Flywheel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = flywheel("desktops", "serve", "--port", str(port)).refusal
    assert said == f"Cannot listen on 127.0.0.1 port {port}: Address already in use; choose another with --port."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--options", "{"], "--options is not JSON"),
        (["--options", "[]"], "--options must be a JSON object"),
        (["--screen", "wide"], "--screen 'wide' is no size; write for example 1920x1080."),
        (["--screen", "0x100"], "--screen '0x100' is no size"),
        (["--host", "127.0.0.1 "], "Binding to 127.0.0.1  lets other machines in"),
    ],
)
def test_arguments_that_cannot_be_used(flywheel: Flywheel, arguments: list[str], says: str) -> None:
    assert says in flywheel("desktops", "serve", *arguments).refusal


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--options", '{"colour": "red"}'],
            "A simulated desktop has no option 'colour'; it has ",
        ),
        (["--options", '{"layout": "round"}'], "There is no layout 'round'; take roomy or free."),
        (["--screen", "5x5"], "A screen of 5 x 5 is too small; take at least 96 x 96."),
        (["--episode", "nope"], "There is no episode 'nope' (No module named 'nope'); choose simulated, console, "),
        (
            ["--episode", "json:Nope"],
            "There is no episode 'json:Nope' (module 'json' has no ",
        ),
    ],
)
def test_desktops_that_can_never_start_end_the_server(flywheel: Flywheel, arguments: list[str], says: str) -> None:
    ran = flywheel("desktops", "serve", "--port", "0", "-n", "2", *arguments)
    serving, refusal = ran.err.splitlines()
    assert serving.startswith("Serving 2 desktops (simulated) at http://127.0.0.1:")
    assert (ran.code, refusal.startswith(says), refusal[-1]) == (1, True, "."), refusal


@pytest.mark.parametrize(
    "arguments", [["--backend", "hologram"], ["--desktops", "0"], ["--port", "70000"], ["--drain", "-1"], ["--x"]]
)
def test_wrong_usage_is_status_2(flywheel: Flywheel, arguments: list[str]) -> None:
    assert flywheel("desktops", "serve", *arguments).code == 2


def test_servers_that_are_not_there(flywheel: Flywheel) -> None:
    assert "http://127.0.0.1:9 does not answer" in flywheel("desktops", "ls", "--url", "http://127.0.0.1:9").refusal
    assert "no URL of an env server" in flywheel("desktops", "ls", "--url", "desktops").refusal


def test_ls_shows_who_uses_what(tmp_path: Path, environment: dict[str, str]) -> None:
    (task,) = tasks()
    with serving(tmp_path / "root", "-n", "2") as served:
        lease = Native(served.url).lease(client="somebody")
        lease.reset(task)
        command = [*COMMAND, "desktops", "ls", "--url", served.url]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        (used,) = [line for line in shown.splitlines() if lease.id in line]
        assert {"leased", "somebody", task.id} <= set(used.split())
        assert "free" in shown


def test_serving_and_listing_import_nothing_heavy() -> None:
    assert not imported("desktops", "ls", "--url", "http://127.0.0.1:9") & set(HEAVY)
    assert not imported("desktops", "serve", "--host", "0.0.0.0") & set(HEAVY)
