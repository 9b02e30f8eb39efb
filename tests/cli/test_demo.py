"""The demo, whole and real, on the one family that an untrained model learns in seconds: giving up."""

import importlib
import json
import shlex
from pathlib import Path

import pytest

from flywheel.cli.demo import COLUMNS, CONTROL, KEYS, SHORT, show_next
from flywheel.cli.memory import family_bytes
from flywheel.config import load_config
from flywheel.jobs.launcher import Launcher
from tests.cli.conftest import Flywheel, Ran

SMALL = (
    "env.families=[infeasible]",
    "env.levels=[1]",
    "env.max_turns=2",
    "tasks.train=60",
    "tasks.heldout=20",
    "tasks.demonstrations=16",
    "eval.episodes=20",
    "sft.steps=40",
    "rollout.tasks=20",
    "rollout.max_tokens=24",
    "flywheel.steps=4",
    "flywheel.min_iterations=2",
    "flywheel.max_iterations=2",
    "flywheel.min_successes=1",
    "flywheel.max_collapse=1",
    "rl.families=[]",
    "rl.steps=1",
    "rl.prompts=4",
    "rl.group=2",
)


@pytest.fixture
def demo(staged: Flywheel, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flywheel:
    importlib.import_module("flywheel.assets.driver")  # has the class in its annotations
    monkeypatch.setattr("flywheel.jobs.launcher.Launcher", lambda: launcher)
    settings = [word for setting in (*SMALL, f"home={tmp_path / 'home'}") for word in ("--set", setting)]
    return lambda *arguments: staged("demo", *arguments, *settings)


def test_a_demo_from_nothing_and_again(demo: Flywheel, flywheel: Flywheel, tmp_path: Path) -> None:
    target = tmp_path / "demo.json"
    first = demo("--json", target, "--seed", 3)
    assert first.code == 0, first.err
    _check(first, json.loads(target.read_text()))
    hints = [shlex.split(line)[1:] for line in first.out.splitlines() if line.startswith("  flywheel ")]
    assert len(hints) == 4
    for hint in hints:
        assert flywheel(*hint).code == 0, hint
    again = demo("--json", target, "--seed", 3)
    assert again.code == 0, again.err
    assert again.out.count(" kept") == len(json.loads(target.read_text())["stages"])


def _check(ran: Ran, result: dict) -> None:
    assert result["seed"] == 3
    stages = result["stages"]
    assert all(set(stage) == set(KEYS) for stage in stages)
    evaluated = [stage for stage in stages if stage["stage"].endswith("eval_report")]
    assert [stage["iteration"] for stage in evaluated if stage["stage"] == "eval_report"] == [1, 2]
    assert all(stage["ci_low"] <= stage["success_rate"] <= stage["ci_high"] for stage in evaluated)
    assert all(stage["episodes"] == 20 for stage in evaluated)
    assert result["control"] == next(stage for stage in stages if stage["stage"] == CONTROL)
    assert set(result["families"]["infeasible"]) == set(COLUMNS)
    assert all(value > 0 for value in result["figures"].values())
    assert 0 < result["figures"]["overhead_share"] < 1
    for stage in stages:
        assert stage["stage"] in ran.out
    assert 'make dev ARGS="--set home=' in ran.out


def test_the_ui_is_opened_with_the_profile_that_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    show_next(load_config("desktop"), "desktop")
    assert '  make dev ARGS="--profile desktop"\n' in capsys.readouterr().out
    show_next(load_config("embedded"), "embedded")
    assert "  make dev\n" in capsys.readouterr().out


def test_the_short_demo_is_the_same_demo() -> None:
    short, full = load_config("embedded", SHORT), load_config("embedded")
    assert short.experiment == full.experiment
    assert short.home != full.home
    assert (short.model, short.env, short.prompt) == (full.model, full.env, full.prompt)
    assert short.flywheel.max_iterations >= 2


def test_memory_counts_this_process() -> None:
    assert 10e6 < family_bytes() < 1e12
