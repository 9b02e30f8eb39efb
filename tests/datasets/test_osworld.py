"""Importing other people's tasks: everything is listed, nothing crashes, and each refusal has its own reason."""

import json
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flywheel.datasets.needs import PROBED, Here, apps_of, downloads, judge, missing_files
from flywheel.datasets.osworld import runnable, split_of, survey
from flywheel.datasets.task_files import load_tasks, save_tasks, task_from_json
from flywheel.errors import TaskError

OSWORLD = Path(__file__).parents[2].parent / "shared" / "osworld"
needs_osworld = pytest.mark.skipif(not OSWORLD.is_dir(), reason="OSWorld's task files are not beside the repository")

EVERYTHING = Here(PROBED, Path("/nonexistent"))
NOTHING = Here(frozenset(), Path("/nonexistent"))


def made(**changes: Any) -> dict[str, Any]:
    """A task that runs anywhere."""
    return {
        "id": "5a1f9d1e-0000-4000-8000-000000000001",
        "snapshot": "os",
        "instruction": "Make a folder named work on the desktop.",
        "config": [{"type": "execute", "parameters": {"command": "true", "shell": True}}],
        "related_apps": ["os"],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "ls ~/Desktop", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": "work\n"}},
        },
    } | changes


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


def evaluator(**changes: Any) -> dict[str, Any]:
    return {"evaluator": made()["evaluator"] | changes}


DOWNLOAD = step("download", files=[{"url": "https://example.org/a.xlsx", "path": "/home/user/a.xlsx"}])
CLOUD = {"type": "cloud_file", "path": "https://example.org/gold.png", "dest": "gold.png"}


def test_a_task_that_needs_nothing_runs_anywhere() -> None:
    assert judge(task_from_json(made()), NOTHING) is None


@pytest.mark.parametrize(
    ("changes", "cause", "reason"),
    [
        ({"proxy": True}, "network", "live web through a proxy"),
        ({"config": [step("chrome_open_tabs", urls_to_open=["https://x.org"])]}, "network", "https://x.org"),
        ({"config": [step("execute", command=["bash", "-c", "sudo apt-get install -y jq"])]}, "network", "apt-get"),
        (evaluator(result={"type": "page_info"}), "network", "page_info"),
        ({"config": [step("login", platform="googledrive")]}, "google", "Google account"),
        (evaluator(result={"type": "googledrive_file"}), "google", "Google account"),
        ({"config": [step("tidy_desktop")]}, "step", "'tidy_desktop'"),
        (evaluator(func="guess"), "evaluator", "no metric 'guess'"),
        (evaluator(func="compare_image_text"), "evaluator", "easyocr"),
        (evaluator(result={"type": "crystal_ball"}), "evaluator", "no getter 'crystal_ball'"),
        ({"related_apps": ["vscode"]}, "app", "vs_code"),
        ({"config": [step("launch", command="VLC_VERBOSE=-1 vlc --no-audio")]}, "app", "vlc"),
        ({"config": [step("open", path="/home/user/a.pptx")]}, "app", "libreoffice_impress"),
        ({"config": [step("execute", command="gsettings set org.gnome.shell x y")]}, "app", "gnome_shell, gsettings"),
        ({"config": [DOWNLOAD]}, "file", "https://example.org/a.xlsx"),
        (evaluator(expected=CLOUD), "file", "https://example.org/gold.png"),
        ({"config": [step("open", path="C:\\Users\\me\\a.xlsx")]}, "platform", "platform windows"),
        ({"config": [step("upload_file", files=[])]}, "unsafe", "file of the server"),
        (evaluator(expected=CLOUD | {"dest": "../../gold.png"}), "unsafe", "'../../gold.png'"),
        ({"config": [step("execute", command="id", stdout="/etc/passwd")]}, "unsafe", "'/etc/passwd'"),
        ({"id": "../up"}, "unsafe", "'../up'"),
    ],
)
def test_every_refusal_has_its_reason(changes: dict[str, Any], cause: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text(json.dumps(made(**changes)))
    (entry,) = survey(tmp_path, NOTHING)
    assert (entry.cause, entry.runnable) == (cause, False)
    assert reason in entry.reason


def test_a_machine_with_more_runs_more(tmp_path: Path) -> None:
    task = task_from_json(made(config=[DOWNLOAD, step("open", path="/home/user/a.xlsx")], proxy=True))
    assert apps_of(task) == {"libreoffice_calc"}
    here = Here(frozenset({"localc"}), tmp_path, internet=True)
    assert judge(task, here).cause == "file"  # type: ignore[union-attr]
    (file,) = missing_files(task, tmp_path)
    assert file.name == f"{uuid.uuid5(uuid.NAMESPACE_URL, 'https://example.org/a.xlsx')}_a.xlsx"
    (tmp_path / task.id).mkdir()
    (tmp_path / task.id / file.name).write_bytes(b"x")
    assert judge(task, here) is None
    assert judge(task, replace(here, internet=False)).cause == "network"  # type: ignore[union-attr]


def test_a_machine_may_know_better_than_its_path() -> None:
    here = replace(EVERYTHING, offers=frozenset({"terminal"}))
    assert judge(task_from_json(made(related_apps=["terminal"])), here) is None
    refusal = judge(task_from_json(made(**evaluator(result={"type": "vm_terminal_output"}))), here)
    assert refusal is not None
    assert "gnome_terminal" in refusal.reason
    assert judge(task_from_json(made(related_apps=["gimp"])), here).cause == "app"  # type: ignore[union-attr]


def test_lists_of_cloud_files_are_all_needed() -> None:
    many = {"type": "cloud_file", "path": ["http://a/1", "http://a/2"], "dest": ["one", "two"], "multi": True}
    task = task_from_json(made(**evaluator(func=["exact_match"], result=[{"type": "rule"}], expected=[many])))
    assert [(file.url, file.name) for file in downloads(task)] == [("http://a/1", "one"), ("http://a/2", "two")]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.pop("instruction"), "has no 'instruction'"),
        (lambda data: data.update(config=[{"type": "launch"}]), "step 0 of its config without type or parameters"),
        (lambda data: data["evaluator"].update(postconfig=["x"]), "step 0 of its postconfig"),
        (
            lambda data: data.update(config=[step("download", files=[{"path": "/a"}])]),
            r"wrong form \(KeyError: 'url'\)",
        ),
        (lambda data: data.update(config=[step("teleport")]), "unknown set-up step 'teleport'"),
    ],
)
def test_a_malformed_file_is_one_sentence_and_the_rest_is_read(
    spoil: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    spoilt = made(id="spoilt")
    spoil(spoilt)
    (tmp_path / "spoilt.json").write_text(json.dumps(spoilt))
    (tmp_path / "truncated.json").write_text(json.dumps(made())[:70])
    (tmp_path / "whole.json").write_text(json.dumps(made()))
    entries = survey(tmp_path, EVERYTHING)
    assert [entry.runnable for entry in entries] == [False, False, True]
    assert entries[0].id == "spoilt"
    with pytest.raises(TaskError, match=message):
        raise TaskError(entries[0].reason)
    for entry in entries[:2]:
        assert str(tmp_path) in entry.reason
        assert "\n" not in entry.reason


def test_a_repeated_id_is_listed(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(made()))
    first, second = survey(tmp_path, EVERYTHING)
    assert first.runnable
    assert "b.json repeats task" in second.reason


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_all.json").write_text('{"os": ["5ea617a3"]}')
    with pytest.raises(TaskError, match="holds no task files"):
        survey(tmp_path, EVERYTHING)
    with pytest.raises(TaskError, match="There is no"):
        survey(tmp_path / "nowhere.jsonl", EVERYTHING)


def test_the_cookbooks_parquet(tmp_path: Path) -> None:
    windows = made(config=[step("open", path="c:\\a.xlsx")])
    rows = [
        ("t-1", "os", made(), "ubuntu"),
        ("t-1_chunk2", "os", made(), "unknown"),
        ("t-2", "multi_apps", None, "ubuntu"),
        ("t-3", "excel", windows, "windows"),
    ]
    table = {
        "task_id": [row[0] for row in rows],
        "prompt": [row[0] for row in rows],
        "domain": [row[1] for row in rows],
        "instruction": ["Do it."] * 4,
        "task_config": [row[2] and json.dumps(row[2]) for row in rows],
        "platform": [row[3] for row in rows],
    }
    path = tmp_path / "tasks.parquet"
    pq.write_table(pa.table(table), path)
    entries = survey(path, EVERYTHING)
    assert [(entry.id, entry.runnable, entry.platform) for entry in entries[:2]] == [
        ("t-1", True, "ubuntu"),
        ("t-1_chunk2", True, "ubuntu"),
    ]
    assert "row 3 (t-2) has no task_config" in entries[2].reason
    assert (entries[3].cause, entries[3].platform) == ("platform", "windows")
    assert split_of("t-1") == split_of("t-1_chunk2")
    pq.write_table(pa.table({"task_id": ["t-1"]}), path)
    with pytest.raises(TaskError, match="lacks the column 'domain'"):
        survey(path, EVERYTHING)
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(TaskError, match="cannot be read as parquet"):
        survey(path, EVERYTHING)


def test_imported_tasks_come_back_from_their_file(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text(json.dumps(made(config=[step("open", path="C:\\a.xlsx")])))
    (entry,) = survey(tmp_path, replace(EVERYTHING, platform="windows"))
    assert entry.task is not None
    save_tasks([entry.task], tmp_path / "tasks.jsonl")
    (again,) = load_tasks(tmp_path / "tasks.jsonl")
    assert (again.id, again.platform, again.split, again.config) == (
        entry.task.id, "windows", entry.task.split, entry.task.config,
    )  # fmt: skip


@needs_osworld
def test_every_public_task_is_judged() -> None:
    bare = survey(OSWORLD, NOTHING)
    assert len(bare) == 418
    assert not [entry.reason for entry in bare if entry.cause == "malformed"]
    ubuntu = [entry for entry in survey(OSWORLD, EVERYTHING) if entry.platform == "ubuntu"]
    causes = Counter(entry.cause for entry in ubuntu)
    assert len(ubuntu) == 369
    assert causes["google"] == 8
    assert 55 <= causes["network"] <= 80
    assert 4 <= causes["evaluator"] <= 9
    assert 220 <= causes["file"] <= 260
    assert 40 <= causes[""] <= 70
    assert sum(entry.cause == "platform" for entry in bare) == 49
    assert {entry.task.split for entry in ubuntu if entry.task} == {"train", "heldout"}


@needs_osworld
def test_with_internet_and_its_files_almost_everything_runs() -> None:
    everything = Here(PROBED, Path("/nonexistent"), internet=True)
    causes = Counter(entry.cause for entry in survey(OSWORLD / "examples", everything))
    assert set(causes) == {"", "file", "google", "evaluator"}
    assert runnable(survey(OSWORLD / "examples", everything), "heldout")
