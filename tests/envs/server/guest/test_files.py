"""Files, recordings, windows: OSWorld's endpoints around the desktop."""

import os
import shutil
import time
from pathlib import Path

import httpx
import pytest

from tests.envs.server.guest.desk import PYTHON, SERVERS, Desk, children, end, until


def _upload(desk: Desk, path: str, data: bytes) -> httpx.Response:
    return desk.post("/setup/upload", data={"file_path": path}, files={"file_data": ("name", data)})


def _file(desk: Desk, path: object) -> httpx.Response:
    return desk.post("/file", data={"file_path": str(path)})


def test_files_go_in_and_out_byte_for_byte(desk: Desk) -> None:
    data = os.urandom(3_000_000)
    answer = _upload(desk, "~/new folder/däta.bin", data)
    assert answer.text == "File Uploaded: 3000000 bytes"
    assert (desk.home / "new folder/däta.bin").read_bytes() == data
    assert _file(desk, "$HOME/new folder/däta.bin").content == data
    assert _upload(desk, str(desk.home), b"x").status_code == 400
    assert os.listdir(desk.home / "new folder") == ["däta.bin"]


def test_what_is_no_file_is_not_found(desk: Desk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo", "/dev/zero", "x" * 5000):
        assert _file(desk, path).status_code == 404


def test_directories_are_listed_though_they_link_in_circles(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").touch()
    (tmp_path / "a/up").symlink_to(tmp_path)
    tree = desk.post("/list_directory", {"path": str(tmp_path)}).json()["directory_tree"]
    assert tree["name"] == tmp_path.name
    assert tree["children"][0]["children"][0] == {"type": "file", "name": "file"}
    assert desk.post("/list_directory", {"path": str(tmp_path / "a/file")}).status_code == 400


def test_places_of_the_guest(desk: Desk) -> None:
    assert desk.post("/desktop_path").status_code == 404
    (desk.home / "Desktop").mkdir()
    assert desk.post("/desktop_path").json() == {"desktop_path": str(desk.home / "Desktop")}
    assert desk.get("/platform").text == "Linux"
    assert desk.post("/setup/download_file", {"url": "file:///etc/passwd", "path": "~/x"}).status_code == 400
    assert desk.post("/setup/download_file", {"url": "http://127.0.0.1:1/", "path": "~/x"}).status_code == 500


def test_a_recording_is_a_film(desk: Desk) -> None:
    assert desk.post("/end_recording").status_code == 400
    answer = desk.post("/start_recording")
    if answer.status_code == 501:
        pytest.skip("ffmpeg is missing")
    assert answer.json()["status"] == "success"
    assert desk.post("/start_recording").status_code == 400
    time.sleep(1)
    assert desk.post("/end_recording").content[4:8] == b"ftyp"


def test_windows_are_found_activated_measured_and_closed(desk: Desk) -> None:
    first = desk.start("xterm", "-class", "First", "-T", "first one", "-geometry", "40x10")
    desk.start("xterm", "-T", "second one")
    until(lambda: {"first one", "second one"} <= set(desk.titles()))

    def active() -> str:
        return str((desk.get("/v1/window").json()["window"] or {}).get("title"))

    for body, title in (
        ({"window_name": "FIRST"}, "first one"),
        ({"window_name": "second one", "strict": True}, "second one"),
        ({"window_name": "first", "by_class": True}, "first one"),
    ):
        assert desk.post("/setup/activate_window", body).text == "Window activated successfully"
        assert active() == title
    size = desk.post("/window_size", data={"app_class_name": "first"}).json()
    assert 100 < size["width"] < 500
    assert size["height"] > 50
    assert desk.post("/window_size", data={"app_class_name": "nobody"}).status_code == 404
    assert desk.post("/setup/activate_window", {"window_name": "FIRST ONE", "strict": True}).status_code == 404
    for title in ("first one", "second one"):
        desk.post("/setup/close_window", {"window_name": title})
    until(lambda: not {"first one", "second one"} & set(desk.titles()))
    assert first.wait(10) == 0


def test_a_task_that_asks_for_chrome_is_given_chromium(desk: Desk) -> None:
    process = desk.start("xterm", "-T", "News - Chromium")
    until(lambda: "News - Chromium" in desk.titles())
    assert desk.post("/setup/activate_window", {"window_name": "Google Chrome"}).status_code == 200
    end(process)


@pytest.mark.desktop
def test_an_editor_is_opened_and_its_tree_is_read(desk: Desk) -> None:
    note = desk.home / "tree.txt"
    note.write_text("words in a text\n")
    assert desk.post("/setup/launch", {"command": ["mousepad", str(note)]}).status_code == 200
    assert desk.post("/setup/activate_window", {"window_name": "tree.txt"}).status_code == 200
    until(lambda: "words in a text" in desk.get("/accessibility").json()["AT"])
    told = desk.get("/v1/accessibility", limit=4000).json()["accessibility"]
    assert "menu\tFile" in told
    assert "words in a text" in told
    assert "Open" not in told  # in a closed menu
    assert len(desk.get("/v1/accessibility", limit=200).json()["accessibility"]) <= 200
    marks = desk.get("/v1/marks", format="jpeg").json()["marks"]
    assert "File" in [each["name"] for each in marks]
    assert desk.get("/v1/terminal").json() == {"terminal": None}
    desk.post("/setup/close_window", {"window_name": "tree.txt"})


@pytest.mark.desktop
def test_open_file_waits_for_the_window(desk: Desk) -> None:
    applications = desk.home / ".local/share/applications"
    applications.mkdir(parents=True)
    (applications / "mimeapps.list").write_text("[Default Applications]\ntext/plain=org.xfce.mousepad.desktop\n")
    note = desk.home / "opened.txt"
    note.write_text("x")
    assert desk.post("/setup/open_file", {"path": str(note)}).status_code == 200
    assert "opened.txt" in desk.get("/v1/window").json()["window"]["title"]
    desk.post("/setup/close_window", {"window_name": "opened.txt"})
    assert desk.post("/setup/open_file", {"path": str(desk.home / "missing.txt")}).status_code == 404


def test_the_accessibility_worker_may_die(desk: Desk) -> None:
    assert "AT" in desk.get("/accessibility").json()
    workers = [pid for pid in children(desk.server.pid) if b"guest.atspi" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 1
    os.kill(workers[0], 9)
    assert "AT" in until(lambda: desk.get("/accessibility").json())


def test_only_loopback_is_listened_on(desk: Desk) -> None:
    process = desk.start(PYTHON, "-m", "guest", "--host", "0.0.0.0", PYTHONPATH=str(SERVERS))
    assert process.wait(10) == 2
    end(process)


@pytest.mark.desktop
def test_the_text_of_a_terminal_is_read(desk: Desk) -> None:
    name = next((name for name in ("lxterminal", "xfce4-terminal", "mate-terminal") if shutil.which(name)), None)
    if name is None:
        pytest.skip("no terminal that speaks at-spi is installed, e.g. lxterminal; xterm does not")
    process = desk.start(name, SHELL="/bin/sh")
    until(lambda: name in desk.get("/v1/window").text)
    until(lambda: desk.get("/v1/terminal").json()["terminal"])
    desk.act("type", text="echo $((6 * 7)) words\n")
    until(lambda: "42 words" in desk.get("/v1/terminal").json()["terminal"])
    assert desk.get("/terminal").json()["output"] == desk.get("/v1/terminal").json()["terminal"]
    end(process)
