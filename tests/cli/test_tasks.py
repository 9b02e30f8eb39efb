"""`flywheel tasks import`."""

import json
from pathlib import Path

from tests.cli.conftest import Flywheel
from tests.datasets.test_osworld import made


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
    assert "holds no task files" in flywheel("tasks", "import", tmp_path, *home).refusal
    (tmp_path / "live.json").write_text(json.dumps(made(proxy=True)))
    ran = flywheel("tasks", "import", tmp_path, *home)
    assert (ran.code, "no tasks were written" in ran.err) == (0, True)
    refusal = flywheel("tasks", *home, "--set", f"tasks.source={tmp_path}").refusal
    assert "None of the 1 tasks" in refusal
