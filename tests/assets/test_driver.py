"""The driver on a made-up flywheel: what it makes, what it skips, how it stops and goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from made_up_house import House

from flywheel.assets.automation import GROUPS
from flywheel.assets.driver import DRIVER, StageRecord
from flywheel.assets.lock import driving
from flywheel.errors import CheckpointError, FlywheelError, PartitionBusyError
from flywheel.processes import is_alive

ONCE = ["rollouts", "sft_set", "sft", "verify", "evaluate"]
ALIGNMENT = ["base_model", "demonstrations", "sft", "verify", "evaluate"]


def test_whole_flywheel_then_only_what_is_missing_or_outdated(build_house: Callable[..., House]) -> None:
    house = build_house(max_iterations=2)
    run = house.drive()
    ran = house.ran()
    assert sorted(ran[:5]) == sorted(ALIGNMENT)
    assert ran[5:] == [*ONCE, *ONCE, "grpo", "verify", "evaluate", "sft", "evaluate"]
    assert [record.stage for record in run.stages[:5]] == list(GROUPS["alignment"])
    assert not any(record.skipped for record in run.stages)
    rates = [record.success_rate for record in run.stages if record.stage == "eval_report"]
    assert rates == [pytest.approx(0.5), pytest.approx(0.6)]
    assert run.best_iteration == 2
    assert run.reason.startswith("All 2 iterations are done")
    assert 0 < run.overhead_seconds < run.wall_seconds
    assert json.loads(json.dumps(run.to_json()))["stages"][0]["stage"] == "tasks"
    check_metadata(house)

    again = house.drive()
    assert house.ran() == []
    assert all(record.skipped for record in again.stages)
    assert [r.success_rate for r in again.stages] == [r.success_rate for r in run.stages]

    shutil.rmtree(house.workspace.checkpoint_dir("iter-02"))
    repaired = house.drive()
    # The checkpoint, and what was made from it; the rollouts and the set before it stay.
    assert house.ran() == ["sft", "verify", "evaluate", "grpo", "verify", "evaluate"]
    assert [r.stage for r in repaired.stages if not r.skipped] == [
        *("checkpoint", "eval_report"),
        *("grpo_checkpoint", "grpo_eval_report"),
    ]

    house = build_house(max_iterations=2, steps=4)
    remade = [r.stage for r in house.drive().stages if not r.skipped]
    assert remade[:2] == ["checkpoint", "eval_report"]
    assert remade[2:4] == ["trajectories", "sft_set"]
    assert remade[-2:] == ["control_checkpoint", "control_eval_report"]


def check_metadata(house: House) -> None:
    trajectories = house.latest("trajectories", "iter-01").metadata
    assert trajectories["success_rate"].value == pytest.approx(0.4)
    assert trajectories["reward/task"].value == pytest.approx(0.5)
    for film in ("film_success", "film_failure"):
        assert str(trajectories[film].value).startswith("![iter-01-")
        assert "data:image/png;base64,iVBOR" in str(trajectories[film].value)
    report = house.latest("eval_report", "iter-02").metadata
    assert "data:image/png;base64,iVBOR" in str(report["success_curve"].value)
    assert "partition = 'eval-iter-02'" in str(report["sql"].value)
    assert report["tokens_per_second"].value == 0.0
    checkpoint = house.latest("checkpoint", "iter-02")
    assert checkpoint.metadata["parent"].value == "iter-01"
    reported = house.latest("policy", "iter-02")
    assert reported.tags["dagster/data_version"] == house.latest("checkpoint", "iter-01").tags["dagster/data_version"]


def test_killed_driver_goes_on_where_it_was(house: House) -> None:
    house.knob("hang", "sft_set")
    driver = start_driver(house.config.home_path)
    job = wait_for(house.config.home_path / "hanging")
    driver.kill()
    driver.wait()
    assert_gone(job)
    (house.config.home_path / "knobs" / "hang").unlink()
    assert house.ran() == [*ALIGNMENT, "rollouts", "sft_set"]
    unfinished = house.instance.get_runs(dg.RunsFilter(tags={DRIVER: "true"}, statuses=[dg.DagsterRunStatus.STARTED]))
    assert len(unfinished) == 1
    house.knob("hang", "evaluate")
    driver = start_driver(house.config.home_path)
    job = wait_for(house.config.home_path / "hanging", job)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(10) == 130
    assert_gone(job)
    # The second driver skipped alignment and the rollouts, and closed the run that the first one left open.
    assert house.ran() == ["sft_set", "sft", "verify", "evaluate"]
    closed = house.instance.get_run_by_id(unfinished[0].run_id)
    assert closed is not None
    assert closed.status == dg.DagsterRunStatus.CANCELED


def test_a_stages_own_error_comes_out_as_it_is(house: House) -> None:
    house.materialize(*GROUPS["alignment"])
    (house.workspace.checkpoint_dir("sft") / "skill").unlink()
    with pytest.raises(CheckpointError, match=r"is corrupt; make the checkpoint again\.$"):
        house.drive()


def test_a_failed_check_is_a_sentence_and_holds_on_resume(build_house: Callable[..., House]) -> None:
    house = build_house(min_successes=19)
    for _ in range(2):
        with pytest.raises(FlywheelError, match=r"enough_successes of trajectories failed: 8 successes; at least 19"):
            house.drive()
    assert "sft_set" not in house.ran()


def test_collapse_stops_the_flywheel(house: House) -> None:
    house.knob("gain-iter-01", "-0.3")
    with pytest.raises(FlywheelError, match=r"Success fell by 30.0% from sft to iter-01"):
        house.drive()


def test_one_driver_a_home(house: House) -> None:
    code = f"""
from pathlib import Path
import time
from flywheel.assets.lock import driving
from flywheel.config import Config
from flywheel.workspace import Workspace
with driving(Workspace(Config(home={str(house.config.home_path)!r}))):
    Path({str(house.config.home_path / "held")!r}).write_text("1")
    time.sleep(60)
"""
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(house.config.home_path / "held")
        with pytest.raises(PartitionBusyError, match=f"Process {other.pid} is already running a flywheel"):
            house.drive()
    finally:
        other.kill()
        other.wait()
    with driving(house.workspace):
        pass


def start_driver(home: Path) -> subprocess.Popen[bytes]:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from made_up_house import House, make_config
from flywheel.jobs.launcher import Launcher
with Launcher(stages="asset_stages", grace=0.3) as launcher:
    try:
        House(make_config(Path({str(home)!r})), launcher).drive()
    except KeyboardInterrupt:
        sys.exit(130)
"""
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ, stderr=subprocess.DEVNULL)


def wait_for(path: Path, not_this: int = 0) -> int:
    deadline = time.monotonic() + 30
    while not path.exists() or not path.read_text() or int(path.read_text()) == not_this:
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.02)
    return int(path.read_text())


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while is_alive(pid):
        assert time.monotonic() < deadline, f"{pid} still lives"
        time.sleep(0.02)


def test_events_tell_the_story(house: House) -> None:
    house.materialize(*GROUPS["alignment"])
    house.knob("gain-iter-01", "-0.3")
    with pytest.raises(FlywheelError):
        house.drive()
    kinds = [type(event).__name__ for event in house.events]
    assert kinds[:6] == ["StageRecord"] * 5 + ["RunStarted"]
    assert {"StageStarted", "Advance"} <= set(kinds)
    assert all(event.skipped for event in house.events[:5] if isinstance(event, StageRecord))
