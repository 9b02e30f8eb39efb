"""OSWorld episodes through a real worker: set-up is checked, failures are told apart, nothing lost is scored."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.datasets.needs import Download, downloads
from flywheel.datasets.osworld_names import GETTERS, METRICS
from flywheel.datasets.task_files import task_from_json
from flywheel.envs.base import ObserveOptions
from flywheel.envs.server.episodes.osworld import WINDOW_SECONDS
from flywheel.envs.server.episodes.osworld_cache import fill_cache
from flywheel.errors import EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Click, Code, Done, Size, Task, Type, Wait
from tests.datasets.test_osworld import CLOUD, DOWNLOAD, evaluator, made, step
from tests.envs.server.episodes.working import (
    ScriptedGuest,
    Working,
    needs_desktops,
    needs_workers,
    picture,
    public_task,
    run_as_worker,
    scripted_guest,
    working,
)

FILE = {"func": "compare_text_file", "result": {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"}}
COMMAND = step("execute", command="mkdir ~/Desktop/work", shell=True)


def task(**changes: Any) -> Task:
    return task_from_json(made(**changes))


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Working, ScriptedGuest]]:
    with scripted_guest() as guest:
        folder = tmp_path_factory.mktemp("desk") / "0"
        with working("remote", folder, server=guest.port, cache=str(folder.parent / "cache")) as worker:
            worker.start()
            yield worker, guest


@pytest.fixture
def desk(lent: tuple[Working, ScriptedGuest]) -> Iterator[tuple[Working, ScriptedGuest]]:
    """The same worker and guest for every test, both well at first."""
    worker, guest = lent
    well = dict(guest.answers)
    guest.asked.clear()
    yield worker, guest
    guest.answers = well
    worker.recycle()


# --- set-up ----------------------------------------------------------------------------------------------------


@needs_workers
def test_set_up_is_done_as_the_file_says(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    seen = worker.reset(task(config=[COMMAND]))
    assert seen.screenshot is not None
    assert seen.screenshot.size == (64, 48)
    (body,) = [body for path, body in guest.asked if path == "/setup/execute"]
    assert b"mkdir ~/Desktop/work" in body


@needs_workers
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ((500, {"status": "error", "message": "no such user"}), "500.*no such user"),
        ((200, {"status": "error", "message": "took too long", "returncode": 124}), "status 124: took too long"),
        ((200, {"status": "success", "error": "sh: 1: jq: not found", "returncode": 127}), "127: sh: 1: jq: not found"),
        ((307, {}), "answered 307"),
    ],
)
def test_a_step_that_fails_is_a_failed_set_up(
    desk: tuple[Working, ScriptedGuest], broken: tuple[int, Any], said: str
) -> None:
    worker, guest = desk
    guest.say("/setup/execute", broken[1], status=broken[0])
    with pytest.raises(SetupError, match=rf"Set-up step 1 \(execute\).*{said}"):
        worker.reset(task(config=[COMMAND]))
    with pytest.raises(InfrastructureError, match="no running episode"):
        worker.step(Wait(0.0))


@needs_workers
def test_a_screen_with_a_blinking_cursor_comes_to_rest(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    blinking = [(200, "image/png", picture(Size(64, 48), shade)) for shade in (0, 255)]
    guest.answers["/v1/screenshot"] = itertools.cycle(blinking)
    guest.say("/setup/launch", {})
    guest.say("/v1/window", {"window": {"id": 1}})
    began = time.monotonic()
    worker.reset(task(config=[step("launch", command="true")]))
    assert time.monotonic() - began < WINDOW_SECONDS


@needs_workers
def test_a_command_may_fail_where_osworld_lets_it(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    guest.say("/setup/execute", {"status": "success", "output": "", "error": "exists", "returncode": 1})
    guest.say("/setup/activate_window", {"message": "Window x not found"}, status=404)
    worker.reset(task(config=[COMMAND, step("activate_window", window_name="x")]))


@needs_workers
def test_a_guest_that_is_lost_in_set_up_is_infrastructure(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    guest.answers["/setup/execute"] = (0, "", b"")
    with pytest.raises(InfrastructureError, match=r"lost in set-up step 1"):
        worker.reset(task(config=[COMMAND]))


@needs_workers
def test_what_cannot_run_is_refused_before_anything_is_asked(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    for changes, said in (
        ({"proxy": True}, "live web"),
        ({"config": [step("tidy_desktop")]}, "tidy_desktop"),
        ({"config": [DOWNLOAD]}, "offline cache"),
        ({"config": [step("open", path="C:\\a.txt")], "flywheel": {"platform": "windows"}}, "platform windows"),
        ({"config": [step("launch", command="gimp")]}, "needs gimp"),
    ):
        with pytest.raises(SetupError, match=said):
            worker.reset(task(**changes))
    assert not guest.asked


# --- judging ---------------------------------------------------------------------------------------------------


@needs_workers
def test_the_checker_judges_once(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    worker.reset(task())
    guest.say("/execute", {"status": "success", "output": "work\n", "error": "", "returncode": 0})
    assert worker.evaluate() == 1.0
    with pytest.raises(EvaluatorError, match="once"):
        worker.evaluate()
    with pytest.raises(InfrastructureError):
        worker.step(Wait(0.0))


@needs_workers
def test_saying_that_it_cannot_be_done_reaches_the_checker(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    guest.say("/execute", {"status": "success", "output": "work\n", "error": "", "returncode": 0})
    for changes, last, score in (
        (evaluator(func="infeasible"), Done("failure"), 1.0),
        (evaluator(func="infeasible"), Done("success"), 0.0),
        (evaluator(func="infeasible"), Wait(0.0), 0.0),
        ({}, Done("failure"), 0.0),
        ({}, Done("success"), 1.0),
    ):
        worker.reset(task(**changes))
        assert worker.step(last).done == isinstance(last, Done)
        assert worker.evaluate() == score


@needs_workers
@pytest.mark.parametrize("func", ["compare_text_file", "check_json"])
def test_a_file_that_the_agent_did_not_make_is_a_zero_and_takes_no_time(
    desk: tuple[Working, ScriptedGuest], func: str
) -> None:
    worker, guest = desk
    rule = {"type": "rule", "rules": {"expect": [{"key": ["a"], "method": "eq", "ref": 1}]}}
    worker.reset(task(evaluator=FILE | {"func": func, "expected": rule}))
    began = time.monotonic()
    assert worker.evaluate() == 0.0
    assert time.monotonic() - began < 5  # desktop-env asks three times, 5 s apart
    assert [path for path, _ in guest.asked].count("/file") == 1


@needs_workers
def test_a_desktop_that_is_lost_is_not_judged(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    for path, checker in (("/file", FILE | {"expected": FILE["result"]}), ("/execute", made()["evaluator"])):
        worker.reset(task(evaluator=checker))
        well = guest.answers.get(path)
        guest.answers[path] = (0, "", b"")
        with pytest.raises(InfrastructureError, match=r"was not judged|does not answer"):
            worker.evaluate()
        guest.answers.pop(path)
        if well:
            guest.answers[path] = well


@needs_workers
def test_a_server_whose_desktop_died_is_not_believed(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    worker.reset(task(evaluator=FILE | {"expected": FILE["result"]}))
    guest.say("/file", {"message": "The X server :0 does not answer."}, status=503)
    with pytest.raises(InfrastructureError, match=r"was not judged.*/file answered 503"):
        worker.evaluate()
    guest.say("/setup/execute", {"message": "The X server :0 does not answer."}, status=503)
    with pytest.raises(InfrastructureError, match="lost in set-up step 1"):
        worker.reset(task(config=[COMMAND]))


@needs_workers
def test_a_checker_that_fails_says_nothing_of_success(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, _ = desk
    worker.reset(task(**evaluator(expected={"type": "rule", "rules": {}})))
    with pytest.raises(EvaluatorError, match=r"exact_match.*KeyError"):
        worker.evaluate()


@needs_workers
def test_the_guest_cannot_send_the_checker_elsewhere(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    worker.reset(task(evaluator=FILE | {"expected": FILE["result"]}))
    guest.answers["/file"] = (307, "text/plain", b"", {"Location": f"http://127.0.0.1:{guest.port}/secret"})
    guest.answers["/secret"] = (200, "text/plain", b"the host's own")
    with contextlib.suppress(EvaluatorError):
        assert worker.evaluate() == 0.0
    assert "/secret" not in [path for path, _ in guest.asked]


# --- acting ----------------------------------------------------------------------------------------------------


@needs_workers
def test_actions_and_code_go_to_the_guest(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    worker.reset(task())
    assert worker.step(Click(5, 6)).executed
    guest.hang_up()  # as uvicorn does with a connection that is idle while the model thinks
    time.sleep(2.1)
    assert worker.step(Click(5, 6)).executed
    guest.say("/v1/action", {"message": "The point (64, 5) is outside the 64 x 48 screen."}, status=422)
    refused = worker.step(Click(64, 5))
    assert not refused.executed
    assert refused.error == "The point (64, 5) is outside the 64 x 48 screen."
    guest.say("/v1/code", {"status": "success", "output": "4\n", "error": "", "returncode": 0})
    assert worker.step(Code("print(2 + 2)")).observation.last_result == "4\n\n[return code 0]"
    assert worker.step(Done()).done
    late = worker.step(Wait(0.0))
    assert late.done
    assert not late.executed
    assert late.error


@needs_workers
def test_text_comes_when_it_is_asked_for_and_is_cut(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    guest.say("/v1/accessibility", {"accessibility": "push-button Save " * 100, "elements": 1})
    guest.say("/v1/terminal", {"terminal": "$ ls\n" * 10_000})
    plain = worker.reset(task())
    assert (plain.accessibility_tree, plain.terminal) == (None, None)
    assert not {"/v1/accessibility", "/v1/terminal"} & {path for path, _ in guest.asked}
    told = worker.reset(task(), ObserveOptions("png", accessibility=True, accessibility_chars=20, terminal=True))
    assert told.accessibility_tree == "push-button Save pus"
    assert told.terminal is not None
    assert len(told.terminal) == 8192
    assert told.screenshot is not None
    assert told.screenshot.codec == "png"


@needs_workers
def test_a_guest_that_sends_no_image_or_too_much_is_lost(desk: tuple[Working, ScriptedGuest]) -> None:
    worker, guest = desk
    worker.reset(task())
    guest.answers["/v1/screenshot"] = (200, "image/png", b"no image")
    with pytest.raises(InfrastructureError, match="no image"):
        worker.step(Wait(0.0))
    guest.answers["/v1/screenshot"] = (200, "image/png", bytes((64 << 20) + 2))
    with pytest.raises(InfrastructureError, match="does not answer"):
        worker.step(Wait(0.0))


@needs_workers
def test_a_stock_server_takes_pyautogui(tmp_path: Path) -> None:
    with scripted_guest() as guest:
        del guest.answers["/v1/health"]
        guest.answers["/screenshot"] = guest.answers.pop("/v1/screenshot")
        with working("remote", tmp_path / "0", server=guest.port) as worker:
            worker.start()
            seen = worker.reset(task())
            assert seen.screenshot is not None
            assert seen.screenshot.codec == "jpeg"
            assert worker.step(Type("hello")).executed
            assert b"pyautogui.write('hello')" in guest.asked[-2][1]


# --- the cache -------------------------------------------------------------------------------------------------


def test_rollouts_of_one_task_share_downloads_and_nothing_else(tmp_path: Path) -> None:
    wanted = task(config=[DOWNLOAD], **evaluator(expected=CLOUD))
    setup, gold = downloads(wanted)
    for file in (setup, gold):
        (tmp_path / "cache" / wanted.id).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / wanted.id / file.name).write_text(file.url)
    for name in ("a", "b"):
        fill_cache(wanted, tmp_path / "cache", tmp_path / name)
    offline, one, other = (tmp_path / name / wanted.id for name in ("cache", "a", "b"))
    assert (one / setup.name).samefile(offline / setup.name)
    (one / gold.name).write_text("written over by an evaluator")
    assert (other / gold.name).read_text() == (offline / gold.name).read_text() == gold.url
    (offline / gold.name).unlink()
    with pytest.raises(SetupError, match=r"https://example.org/gold.png, which is not at"):
        fill_cache(wanted, tmp_path / "cache", tmp_path / "c")


# --- desktop-env as it is installed ----------------------------------------------------------------------------


@needs_workers
def test_every_getter_and_metric_is_there() -> None:
    ran = run_as_worker(
        "from flywheel.envs.server.episodes.osworld_imports import import_desktop_env\n"
        "from flywheel.datasets.osworld_names import GETTERS, METRICS\n"
        "import_desktop_env()\n"
        "from desktop_env.evaluators import getters, metrics\n"
        "assert all(callable(getattr(metrics, name)) for name in METRICS)\n"
        "assert all(callable(getattr(getters, f'get_{name}')) for name in GETTERS)\n"
        "import sys; assert not hasattr(metrics, 'crystal_ball') and 'torch' not in sys.modules\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert (len(GETTERS), len(METRICS - {"infeasible"})) == (54, 136)


@needs_workers
def test_what_is_not_used_is_not_imported() -> None:
    ran = run_as_worker(
        "import sys\n"
        "from flywheel.envs.server.episodes.osworld_imports import import_desktop_env\n"
        "import_desktop_env()\n"
        "assert not {'librosa', 'skimage', 'cv2', 'fitz', 'pymupdf', 'pandas'} & set(sys.modules)\n"
    )
    assert ran.returncode == 0, ran.stderr


@needs_workers
def test_comparing_addresses_asks_nobody() -> None:
    ran = run_as_worker(
        "import socket\n"
        "from flywheel.envs.server.episodes.osworld_imports import import_desktop_env\n"
        "import_desktop_env()\n"
        "from desktop_env.evaluators.metrics.utils import compare_urls\n"
        "def asked(*_, **__): raise SystemExit('it asked the network')\n"
        "socket.getaddrinfo = asked\n"
        "assert compare_urls('https://www.airbnb.com/a', 'https://airbnb.com.sg/a')\n"
    )
    assert ran.returncode == 0, ran.stderr


@needs_workers
def test_what_an_agent_prints_is_not_run(tmp_path: Path) -> None:
    printed = f"open({str(tmp_path / 'made')!r}, 'w')"
    ran = run_as_worker(
        "from flywheel.envs.server.episodes.osworld_imports import import_desktop_env\n"
        "import_desktop_env()\n"
        "from desktop_env.evaluators import metrics\n"
        f"metrics.check_gnome_favorite_apps({printed!r}, {{'expected': []}})\n"
    )
    assert "malformed node" in ran.stderr
    assert not (tmp_path / "made").exists()


@needs_workers
def test_an_archive_of_the_agent_stays_in_its_folder(tmp_path: Path) -> None:
    ran = run_as_worker(
        "import io, os, tarfile\n"
        "from flywheel.envs.server.episodes.osworld_imports import import_desktop_env\n"
        "import_desktop_env()\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "def archive(name, *members):\n"
        "    with tarfile.open(name, 'w:gz') as made:\n"
        "        [made.addfile(member, io.BytesIO(b'x' * member.size)) for member in members]\n"
        "    return name\n"
        "link = tarfile.TarInfo('passwd'); link.type = tarfile.SYMTYPE; link.linkname = '/etc/passwd'\n"
        f"out = tarfile.TarInfo({str(tmp_path / 'out')!r}); out.size = 1\n"
        "from desktop_env.evaluators import metrics\n"
        "for number, member in enumerate((link, out)):\n"
        "    try:\n"
        "        metrics.compare_archive(archive(f'a{number}.tar.gz', member), archive(f'b{number}.tar.gz'))\n"
        "    except tarfile.FilterError as error:\n"
        "        print(type(error).__name__)\n"
        "assert not os.path.lexists('a0_pred/passwd') and not os.path.exists('out')\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert "AbsoluteLinkError" in ran.stdout


# --- on a real desktop -----------------------------------------------------------------------------------------

RENAMED = Code("mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2", "bash")


@needs_desktops
def test_a_public_task_on_a_real_desktop(tmp_path: Path) -> None:
    feasible, infeasible = public_task("os/e0df059f"), public_task("chrome/3720f614")
    with working("xvfb", tmp_path / "0", screen=[640, 400]) as worker:
        offered = worker.start()
        assert (offered.screen, offered.platform, offered.isolation) == ((640, 400), "ubuntu", "bubblewrap")
        for actions, score in (([], 0.0), ([Done()], 0.0), ([RENAMED, Done()], 1.0), ([RENAMED, Done("failure")], 0.0)):
            worker.reset(feasible)
            for action in actions:
                assert worker.step(action).error is None
            assert worker.evaluate() == score
            worker.recycle()
        if "chrome" in offered.apps:
            for action, score in ((Done(), 0.0), (Done("failure"), 1.0)):
                worker.reset(infeasible)
                worker.step(action)
                assert worker.evaluate() == score
        worker.close()


@needs_desktops
def test_a_link_where_the_checker_reads_shows_the_guests_own_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's own")
    wanted = task(evaluator=FILE | {"expected": FILE["result"]})
    with working("xvfb", tmp_path / "0", screen=[640, 400]) as worker:
        worker.start()
        worker.reset(wanted)
        worker.step(Code(f"ln -s {secret} /home/user/a.txt", "bash"))
        assert worker.evaluate() == 0.0
        assert not [path for path in (tmp_path / "0").rglob("a.txt") if "host" in path.read_text()]
        worker.close()


def test_downloads_have_the_names_that_desktop_env_looks_for() -> None:
    assert downloads(public_task("os/5ea617a3")) == [
        Download(
            "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/os/"
            "5ea617a3-0e86-4ba6-aab2-dac9aa2e8d57/poster_party_night.webp",
            "12ddc05f-27ca-58b4-8794-440c38d55142_poster_party_night.webp",
        )
    ]
