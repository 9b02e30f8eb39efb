"""What every command has in common: light start, one sentence for a refusal, the right status, nobody left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flywheel.processes import children, is_alive
from tests.cli.conftest import QUIET, Flywheel

COMMAND = [sys.executable, "-c", "from flywheel.cli.app import main; main()"]
HEAVY = ("torch", "transformers", "dagster", "mlflow", "datasets", "scipy")


def imported(*arguments: str) -> set[str]:
    """Top-level modules that a command imports, in a process of its own."""
    script = "import sys, contextlib\nfrom flywheel.cli.app import main\n"
    script += "with contextlib.suppress(SystemExit): main()\nprint(' '.join(sys.modules), file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in ended.stderr.splitlines()[-1].split()}


def test_help_imports_next_to_nothing() -> None:
    seen = imported("--help")
    assert not seen & {*HEAVY, "numpy", "pydantic", "duckdb", "pyarrow"}


@pytest.mark.parametrize(
    "arguments", [("sql", "SELECT 1"), ("show", "nobody"), ("eval", "--policy", "nobody"), ("tasks",)]
)
def test_light_commands_never_import_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    seen = imported(*arguments, "--set", f"home={tmp_path}", "--set", "tasks.train=20", "--set", "tasks.heldout=10")
    assert not seen & set(HEAVY)


def test_help_and_a_missing_policy_answer_at_once(tmp_path: Path) -> None:
    assert cpu_seconds("--help") < 0.5
    assert cpu_seconds("eval", "--policy", "nobody", "--set", f"home={tmp_path}") < 1.0


def cpu_seconds(*arguments: str) -> float:
    """Of a command in a process of its own; unlike wall time it does not depend on who else is at work."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


def test_wrong_usage_is_status_2(flywheel: Flywheel) -> None:
    assert flywheel("eval").code == 2
    assert flywheel("fly").code == 2
    assert flywheel("eval", "--policy", "sft", "--episodes", "0").code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "sft.lrr=1"], "Unknown key 'sft.lrr' in setting; did you mean sft.lr?"),
        (["--set", "steps"], "not of the form key=value"),
        (["--set", "sft.steps=many"], "sft.steps cannot be 'many'"),
        (["--set", "tasks.train=-5"], "tasks.train cannot be -5: input should be greater than or equal to 1"),
        (["--set", "rl.lr=.nan"], "rl.lr cannot be nan: input should be greater than 0"),
        (["--profile", "huge"], "no profile 'huge'"),
        (["--profile", "absent.yaml"], "no profile 'absent.yaml'"),
    ],
)
def test_settings_that_cannot_be_used(flywheel: Flywheel, arguments: list[str], says: str) -> None:
    for command in (["tasks"], ["demo"], ["dev"], ["sql", "SELECT 1"], ["eval", "--policy", "base"], ["doctor"]):
        assert says in flywheel(*command, *arguments).refusal


def test_a_profile_in_another_encoding_is_one_sentence(flywheel: Flywheel, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes("home: é".encode("latin-1"))
    assert "mine.yaml is not valid YAML" in flywheel("tasks", "--profile", tmp_path / "mine.yaml").refusal


def test_a_file_in_the_place_of_a_home_is_one_sentence(flywheel: Flywheel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = ("--set", f"home={tmp_path}/file", "--set", "tasks.train=20", "--set", "tasks.heldout=10")
    assert "a file stands where a folder is needed" in flywheel("tasks", *settings).refusal


@pytest.mark.parametrize(
    "command",
    [
        ("rollout", "--policy", "sft", "--partition"),
        ("judge", "--partition"),
        ("train", "sft", "--version"),
        ("train", "grpo", "--policy", "sft", "--version"),
    ],
)
def test_names_that_lead_out_of_their_folder_are_refused(
    flywheel: Flywheel, command: tuple[str, ...], tmp_path: Path
) -> None:
    assert "'../evil' cannot be a folder name" in flywheel(*command, "../evil", "--set", f"home={tmp_path}").refusal
    assert not list(tmp_path.iterdir())


def test_unknown_key_in_a_profile_names_the_file_and_the_nearest_key(flywheel: Flywheel, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text("rollout:\n  temperatur: 0.5\n")
    said = flywheel("rollout", "--policy", "sft", "--profile", profile).refusal
    assert said == f"Unknown key 'rollout.temperatur' in {profile}; did you mean rollout.temperature?"


@pytest.mark.parametrize("command", [["eval"], ["rollout"], ["train", "grpo"], ["train", "sft"], ["doctor"]])
def test_a_missing_policy_names_those_that_are_there(flywheel: Flywheel, command: list[str], tmp_path: Path) -> None:
    said = flywheel(*command, "--policy", "iter-07", "--set", f"home={tmp_path}").refusal
    assert said.startswith("There is no policy 'iter-07' in experiment 'default' (known: none yet)")
    assert not list(tmp_path.iterdir()), "a refusal leaves nothing behind"


def test_what_could_not_be_written_is_refused_before_the_work(flywheel: Flywheel, tmp_path: Path) -> None:
    for command in (["demo"], ["eval", "--policy", str(_policy(tmp_path))]):
        said = flywheel(*command, "--json", tmp_path / "absent" / "out.json").refusal
        assert "absent does not exist; make that folder first" in said


def _policy(folder: Path) -> Path:
    (folder / "config.json").write_text("{}")
    return folder


def test_a_full_disk_is_one_sentence(flywheel: Flywheel, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    said = flywheel("sql", "FROM range(9)", "--output", "/dev/full", "--set", f"home={tmp_path}").refusal
    assert "no space is left on the device" in said


def test_interrupt_is_status_130_and_leaves_nobody(tmp_path: Path, environment: dict[str, str]) -> None:
    settings = [argument for setting in (*QUIET, f"home={tmp_path}") for argument in ("--set", setting)]
    endless = ["--set", "model.tiny.vision_steps=100000"]
    process = subprocess.Popen(
        [*COMMAND, "base", *settings, *endless],
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
        # Tests that a shell runs in the background inherit that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    progress = tmp_path / "experiments/default/runs/base_model-base/progress.json"
    deadline = time.monotonic() + 240
    while not progress.exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    family = _family(process.pid)
    assert len(family) >= 2, "a keeper and a job"
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert not [pid for pid in family if is_alive(pid)]
    assert not (tmp_path / "experiments/default/checkpoints/base").exists()


def _family(parent: int) -> set[int]:
    born = children(parent)
    return born.union(*(_family(child) for child in born))
