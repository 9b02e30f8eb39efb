"""Watching: a page on loopback that shows one leased desktop and takes no input, and is gone with the lease."""

import asyncio
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidMessage
from websockets.sync.client import ClientConnection, connect

from flywheel.cli.desktops import tunnel
from flywheel.datasets.task_files import task_from_json
from flywheel.envs.server.backends import Backend
from flywheel.envs.server.leases import Refusal
from flywheel.envs.server.supervisor import Supervisor
from flywheel.envs.server.viewer import why_no_page
from flywheel.envs.wire import decode_result
from flywheel.processes import family
from flywheel.types import Action, Code, Move
from tests.cli.test_app import COMMAND
from tests.datasets.test_osworld import made
from tests.envs.server.episodes.working import needs_desktops
from tests.envs.server.rfb import Watched
from tests.envs.server.serving import Held, Native, Served, error_of, serving, tasks, wait_dead
from tests.envs.server.shown import BANNER
from tests.envs.server.test_supervisor import begun, supervised

pytestmark = pytest.mark.skipif(why_no_page() is not None, reason=why_no_page() or "")

SHOWN = ("--episode", "tests.envs.server.shown:ShownEpisode")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("shown"), "-n", "2", *SHOWN) as running:
        yield running


@pytest.fixture
def shown(server: Served) -> Served:
    """Two desktops that can be watched, both free."""
    server.wait_for(free=2)
    return server


def pages(served: Served) -> list[int]:
    """Processes that serve pages: one for each, and one more for every browser."""
    found = []
    for pid in family(served.process.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [pid] if b"websockify" in command else []
    return sorted(found)


def until_no_page(served: Served) -> None:
    deadline = time.monotonic() + 10
    while left := pages(served):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def opened(lease: Held) -> str:
    answer = lease.post("view")
    assert answer.status_code == 200, answer.text
    url: str = answer.json()["url"]
    return url


def screen(page: str) -> ClientConnection:
    """A browser's connection to the screen, as the page's address tells it."""
    told = urlsplit(page)
    (path,) = parse_qs(told.query)["path"]
    return connect(f"ws://{told.netloc}/{path}", subprotocols=["binary"], compression=None)  # type: ignore[list-item]


def refuses_connections(page: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", urlsplit(page).port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


# --- one page a desktop, and none left -------------------------------------------------------------------------------


def test_a_lease_has_one_page_and_it_ends_with_it(shown: Served) -> None:
    lease, other = Native(shown.url).lease(), Native(shown.url).lease()
    page = opened(lease)
    assert opened(lease) == page
    assert opened(other) != page
    assert len(pages(shown)) == 2
    with screen(page) as connection:
        assert connection.recv(5) == BANNER
        lease.release()
        shown.wait_for(free=1)
        assert refuses_connections(page)
    assert len(pages(shown)) == 1
    other.release()
    shown.wait_for(free=2)
    assert pages(shown) == []
    assert not list(shown.root.glob("run/*/*.view")), "nor is a secret left"


def test_recycling_for_the_next_episode_ends_the_page(shown: Served) -> None:
    lease = Native(shown.url).lease()
    (task,) = tasks()
    lease.reset(task)
    page = opened(lease)
    lease.reset(task)
    assert refuses_connections(page)
    assert pages(shown) == []
    assert not refuses_connections(opened(lease))
    lease.release()


def test_a_page_that_died_is_replaced(shown: Served) -> None:
    lease = Native(shown.url).lease()
    page = opened(lease)
    subprocess.run(["kill", "-9", *map(str, pages(shown))], check=True)
    until_no_page(shown)
    again = opened(lease)
    assert again != page
    with screen(again) as connection:
        assert connection.recv(5) == BANNER
    lease.release()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_page_outlives_the_server(tmp_path: Path, how: signal.Signals) -> None:
    with serving(tmp_path, *SHOWN) as served:
        lease = Native(served.url).lease()
        page = opened(lease)
        with screen(page) as connection:
            assert connection.recv(5) == BANNER
            running = pages(served)
            assert len(running) == 2, "the page's process and the one of this connection"
            served.stop(how)
            wait_dead(*running)
        assert refuses_connections(page)


def test_no_page_outlives_its_worker(tmp_path: Path) -> None:
    with serving(tmp_path, *SHOWN) as served:
        lease = Native(served.url).lease()
        page = opened(lease)
        subprocess.run(["kill", "-9", *map(str, served.workers())], check=True)
        until_no_page(served)
        assert refuses_connections(page)
        assert error_of(lease.post("view"))[:2] == (410, "infrastructure")


# --- who may look ----------------------------------------------------------------------------------------------------


def test_the_port_shows_nothing_without_the_secret_of_the_address(shown: Served) -> None:
    lease = Native(shown.url).lease()
    page = opened(lease)
    right = parse_qs(urlsplit(page).query)["path"][0]
    for path in ("websockify", "websockify?token=", right[:-1], right[:-1] + "x"):
        with pytest.raises(InvalidMessage), connect(f"ws://{urlsplit(page).netloc}/{path}") as connection:
            connection.recv(5)
    (secret,) = shown.root.glob("run/*/*.view")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert urlsplit(page).hostname == "127.0.0.1"
    lease.release()


def test_a_lease_is_shown_to_its_client_and_to_whoever_has_the_token(tmp_path: Path) -> None:
    with serving(tmp_path, *SHOWN, token="s3cret", ready=False) as served:
        native = Native(served.url, Authorization="Bearer s3cret")
        lease = native.lease(wait_s=30)
        stranger = httpx.Client(base_url=served.url)
        assert error_of(stranger.post("/v1/desktops/0/view"))[:2] == (401, "request")
        assert error_of(lease.post("view", secret="wrong"))[:2] == (403, "request")
        assert native.http.post("/v1/desktops/0/view").json()["url"] == opened(lease)


def test_what_cannot_be_watched_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    options = json.dumps({"why_not": "It is dark in there."})
    with serving(tmp_path, *SHOWN, "--options", options) as served:
        native = Native(served.url)
        free = error_of(native.http.post("/v1/desktops/0/view"))
        assert free[:2] == (409, "request")
        assert "Desktop 0 is not leased" in free[2]
        assert error_of(native.http.post("/v1/desktops/1/view"))[:2] == (404, "request")
        lease = native.lease()
        lease.reset(tasks()[0])
        assert error_of(lease.post("view")) == (409, "request", "It is dark in there.")
        assert lease.post("evaluate").status_code == 200
        assert pages(served) == []
        lease.release()
        assert error_of(lease.post("view"))[:2] == (410, "request")


def test_a_command_that_runs_is_waited_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(supervisor: Supervisor) -> None:
        lease = await begun(supervisor)
        looking = asyncio.create_task(lease.observe())
        await asyncio.sleep(0.1)
        monkeypatch.setattr("flywheel.envs.server.leases.VIEW_SECONDS", 0.2)
        with pytest.raises(Refusal, match="Desktop 0 is in the middle of a command"):
            await lease.view()
        assert not looking.done()
        monkeypatch.setattr("flywheel.envs.server.leases.VIEW_SECONDS", 30.0)
        assert (await lease.view()).startswith("http://127.0.0.1:")
        assert looking.done()

    assert supervised(tmp_path, play, backend=Backend("tests.envs.server.shown:SlowEpisode")) == []


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with serving(tmp_path / "root", *SHOWN) as served:
        lease = Native(served.url).lease()
        assert error_of(lease.post("view")) == (
            409,
            "request",
            "The host of the env server cannot show desktops; run `apt-get install util-linux websockify` there.",
        )
        assert lease.reset(tasks()[0]).status_code == 200


def test_simulated_desktops_have_no_screen_server(served: Served) -> None:
    lease = Native(served.url).lease()
    assert error_of(lease.post("view"))[2].startswith("A simulated desktop has no screen server")
    lease.release()


# --- the command -----------------------------------------------------------------------------------------------------


def watch(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "desktops", "watch", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_watch_prints_the_page_of_a_lease_or_a_desktop(shown: Served, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    lease = Native(shown.url).lease()
    number = next(each["desktop"] for each in shown.get("/v1/desktops") if each["lease"] == lease.id)
    page = opened(lease)
    by_lease = watch(environment, lease.id, "--url", shown.url)
    assert by_lease.returncode == 0, by_lease.stderr
    assert by_lease.stdout == watch(environment, str(number), "--url", shown.url).stdout == page + "\n"
    assert by_lease.stderr == ""
    free = watch(environment, str(1 - number), "--url", shown.url)
    assert (free.returncode, free.stdout) == (1, "")
    assert f"Desktop {1 - number} is not leased" in free.stderr
    unknown = watch(environment, "nobody", "--url", shown.url)
    assert "There is no lease and no desktop 'nobody'; see `flywheel desktops ls`." in unknown.stderr
    lease.release()


def test_a_page_of_another_machine_is_reached_through_a_tunnel() -> None:
    page = "http://127.0.0.1:4321/vnc.html"
    assert tunnel("http://gpu1:8100", page) == "ssh -N -L 4321:127.0.0.1:4321 gpu1"
    assert tunnel("http://localhost:8100", page) is None


# --- a real desktop --------------------------------------------------------------------------------------------------


def said(lease: Held, index: int, action: Action) -> str:
    answer = lease.step(index, action)
    assert answer.status_code == 200, answer.text
    return decode_result(answer.content).observation.last_result or ""


@needs_desktops
@pytest.mark.skipif(not Path("/usr/bin/x11vnc").exists(), reason="needs apt-get install x11vnc")
def test_a_real_desktop_is_shown_and_cannot_be_touched(served_xvfb: Served) -> None:
    served_xvfb.wait_for(120, free=1)
    lease = Native(served_xvfb.url).lease()
    try:
        lease.reset(task_from_json(made(), "os"))
        page = opened(lease)
        shown = httpx.get(page)
        assert shown.status_code == 200
        assert "noVNC" in shown.text
        said(lease, 0, Move(10, 20))
        assert "x:10 y:20" in said(lease, 1, Code("xdotool getmouselocation", "bash"))
        with screen(page) as connection:
            watched = Watched(connection)
            assert (watched.width, watched.height) == (640, 400)
            assert watched.name
            watched.point(300, 200)
            watched.press("a")
            assert watched.look() == 640 * 400
            assert "x:10 y:20" in said(lease, 2, Code("xdotool getmouselocation", "bash"))
    finally:
        lease.release()
    served_xvfb.wait_for(60, free=1)
    assert refuses_connections(page)
    assert pages(served_xvfb) == []
