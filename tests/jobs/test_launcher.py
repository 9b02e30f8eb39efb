"""Launching real processes: results, refusals, crashes, interrupts, and that nobody is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.config import Config
from flywheel.errors import FlywheelError, InfrastructureError, PartitionBusyError
from flywheel.jobs.launcher import Advance, Launcher, Listener, may_fork
from flywheel.processes import is_alive

CPU = Config.model_validate({"model": {"device": "cpu"}})
CUDA = Config.model_validate({"model": {"device": "cuda:0"}})
STAGES = "launcher_stages"


@pytest.fixture(scope="module", autouse=True)
def _stages_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(stages=STAGES, grace=0.3) as launcher:
        yield launcher


def wait_for(path: Path) -> list[int]:
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.01)
    return [int(pid) for pid in path.read_text().split()]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while living := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"{living} of {pids} still live"
        time.sleep(0.02)


def test_result_progress_log_metrics_and_environment(launcher: Launcher, tmp_path: Path) -> None:
    advances: list[Advance] = []
    lines: list[str] = []
    rows: list[dict[str, float]] = []
    listener = Listener(progress=advances.append, log=lines.append, metrics=rows.append)
    result = launcher.run("misbehave", CPU, {"what": "answer"}, tmp_path, listener, env={"SECRET": "apple"})
    assert result["secret"] == "apple"
    assert result["session"]
    assert result["warm"]
    assert advances[-1] == Advance(3, 3, "steps")
    assert lines[0].endswith("does answer")
    assert [row["step"] for row in rows] == [0, 1, 2]


def test_a_forked_job_starts_in_a_moment(launcher: Launcher, tmp_path: Path) -> None:
    launcher.run("misbehave", CPU, {"what": "answer"}, tmp_path)
    seconds = []
    for _ in range(3):
        begun = time.monotonic()
        launcher.run("misbehave", CPU, {"what": "answer"}, tmp_path)
        seconds.append(time.monotonic() - begun)
    assert min(seconds) < 0.5


def test_cuda_gets_a_fresh_interpreter(launcher: Launcher, tmp_path: Path) -> None:
    assert may_fork(CPU)
    assert not may_fork(CUDA)
    assert not launcher.run("misbehave", CUDA, {"what": "answer"}, tmp_path)["warm"]


def test_plain_command_line(tmp_path: Path) -> None:
    from flywheel.jobs.base import RunFolder

    RunFolder(tmp_path).write_spec(CPU, {"what": "answer"})
    command = [sys.executable, "-m", "flywheel.jobs", f"{STAGES}.misbehave", str(tmp_path)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert RunFolder(tmp_path).read_result()
    assert b"usage" in subprocess.run(command[:3], check=False, capture_output=True).stderr


def test_refusal_is_the_jobs_own_sentence(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(PartitionBusyError, match=r"^Process 7 holds iter-01; wait for it\.$"):
        launcher.run("misbehave", CPU, {"what": "refuse"}, tmp_path)


def test_crash_quotes_the_log(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(FlywheelError, match=r"misbehave job crashed with status 1; .*ZeroDivisionError: half a step$"):
        launcher.run("misbehave", CPU, {"what": "crash"}, tmp_path)


def test_kill_names_memory_and_the_log(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(FlywheelError, match=r"was killed \(SIGKILL\).*memory.*does killed$"):
        launcher.run("misbehave", CPU, {"what": "killed"}, tmp_path)


def test_unknown_stage_says_so_in_the_log(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(FlywheelError, match="No module named"):
        launcher.run("absent", CPU, {}, tmp_path)


@pytest.mark.parametrize("config", [CPU, CUDA], ids=["forked", "fresh"])
@pytest.mark.parametrize("deaf", [False, True])
def test_interrupt_leaves_no_survivor(launcher: Launcher, tmp_path: Path, config: Config, deaf: bool) -> None:
    pids = tmp_path / "pids"

    def interrupt() -> None:
        wait_for(pids)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        launcher.run("misbehave", config, {"what": "hang", "pids": str(pids), "deaf": deaf}, tmp_path)
    assert_gone(wait_for(pids))


def test_a_job_that_ends_well_leaves_nobody_either(launcher: Launcher, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    launcher.run("misbehave", CPU, {"what": "leave", "pids": str(pids)}, tmp_path)
    assert_gone(wait_for(pids))


def test_killing_the_launching_process_ends_its_jobs(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    parent = start_parent(tmp_path, pids)
    family = wait_for(pids)
    parent.kill()
    parent.wait()
    assert_gone(family)


def test_losing_the_worker_ends_the_job_and_the_next_one_runs(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with Launcher(warm=False, stages=STAGES) as launcher:
        keeper = launcher._keeper._process.pid
        threading.Thread(target=lambda: (wait_for(pids), os.kill(keeper, signal.SIGKILL))).start()
        with pytest.raises(InfrastructureError, match=r"worker process .* died, most often because memory ran out"):
            launcher.run("misbehave", CPU, {"what": "hang", "pids": str(pids)}, tmp_path)
        *session, apart = wait_for(pids)
        assert_gone(session)
        os.kill(apart, signal.SIGKILL)  # out of reach with its keeper and its parent gone
        assert launcher.run("misbehave", CPU, {"what": "answer"}, tmp_path)["session"]


def test_one_process_a_run_folder(launcher: Launcher, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    parent = start_parent(tmp_path, pids)
    wait_for(pids)
    try:
        with pytest.raises(PartitionBusyError, match=f"Process {parent.pid} is running"):
            launcher.run("misbehave", CPU, {"what": "answer"}, tmp_path)
    finally:
        parent.kill()
        parent.wait()


def start_parent(run_dir: Path, pids: Path) -> subprocess.Popen[bytes]:
    """A process that launches a hanging job and waits for it."""
    code = f"""
from pathlib import Path
from flywheel.config import Config
from flywheel.jobs.launcher import Launcher
with Launcher(warm=False, stages={STAGES!r}) as launcher:
    launcher.run("misbehave", Config(), {{"what": "hang", "pids": {str(pids)!r}}}, Path({str(run_dir)!r}))
"""
    return subprocess.Popen([sys.executable, "-c", code])
