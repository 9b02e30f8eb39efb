"""`flywheel tasks import`."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import Flywheel
from tests.datasets.test_osworld import made, step


def test_import_lists_everything_and_keeps_what_can_run(flywheel: Flywheel, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    for i in range(8):
        (pack / f"{i}.json").write_text(json.dumps(made(id=f"task-{i}")))
    (pack / "live.json").write_text(json.dumps(made(id="live", proxy=True)))
    (pack / "cut.json").write_text("{")
    home = ("--set", f"home={tmp_path}")
    ran = flywheel("tasks", "import", pack, "--json", tmp_path / "out.json", *home)
    assert ran.code == 0, ran.err
    assert "cut.json is not JSON" in ran.err
    listed = json.loads((tmp_path / "out.json").read_text())
    assert [set(entry) for entry in listed] == [{"id", "domain", "platform", "runnable", "reason"}] * 10
    assert sum(entry["runnable"] for entry in listed) == 8
    (train,), (heldout,) = tmp_path.glob("tasks/*/train.jsonl"), tmp_path.glob("tasks/*/heldout.jsonl")
    ids = [json.loads(line)["id"] for file in (train, heldout) for line in file.read_text().splitlines()]
    assert sorted(ids) == [f"task-{i}" for i in range(8)]
    before = train.read_bytes()
    train.unlink()
    assert flywheel("tasks", *home, "--set", f"tasks.source={pack}").code == 0
    assert train.read_bytes() == before


def test_what_cannot_be_imported_is_one_sentence(flywheel: Flywheel, tmp_path: Path) -> None:
    home = ("--set", f"home={tmp_path}")
    assert "There is no /nowhere" in flywheel("tasks", "import", "/nowhere", *home).refusal
    assert "holds no task files" in flywheel("tasks", "import", tmp_path, *home).refusal
    (tmp_path / "cut.json").write_text('{"id": "a", ')
    ran = flywheel("tasks", "import", tmp_path / "cut.json", *home)
    assert (ran.code, "cut.json" in ran.err) == (1, True)
    (tmp_path / "cut.json").unlink()
    (tmp_path / "live.json").write_text(json.dumps(made(proxy=True)))
    ran = flywheel("tasks", "import", tmp_path, *home)
    assert (ran.code, "no tasks were written" in ran.err) == (0, True)
    refusal = flywheel("tasks", *home, "--set", f"tasks.source={tmp_path}").refusal
    assert "None of the 1 tasks" in refusal


def test_downloads_are_fetched_once_and_then_there(
    flywheel: Flywheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_DESKTOPS", str(tmp_path / "desktops"))
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            there = self.path == "/a.txt" and asked.count(self.path) > 1  # the first try meets a busy server
            self.send_response(200 if there else 404 if self.path == "/gone.txt" else 503)
            self.end_headers()
            self.wfile.write(b"whole" if there else b"")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    pack = tmp_path / "pack"
    pack.mkdir()
    for name in ("a", "gone"):
        files = [{"url": f"{url}/{name}.txt", "path": f"/home/user/{name}.txt"}]
        (pack / f"{name}.json").write_text(json.dumps(made(id=name, config=[step("download", files=files)])))
    home = ("--set", f"home={tmp_path}")
    ran = flywheel("tasks", "import", pack, "--fetch", "--json", tmp_path / "out.json", *home)
    server.shutdown()
    server.server_close()
    assert ran.code == 0, ran.err
    assert f"{url}/gone.txt could not be downloaded" in ran.err
    listed = {entry["id"]: entry["runnable"] for entry in json.loads((tmp_path / "out.json").read_text())}
    assert listed == {"a": True, "gone": False}
    (file,) = tmp_path.glob("desktops/cache/*/*")
    assert (file.parent.name, file.read_bytes()) == ("a", b"whole")
    assert sorted(asked) == ["/a.txt", "/a.txt", "/gone.txt"]
