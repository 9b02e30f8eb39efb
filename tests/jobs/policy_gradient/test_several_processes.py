"""Policy gradient as the command line starts it on several processes: torchrun, FSDP2 over gloo, one that plays."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from flywheel.config import Config
from flywheel.errors import FlywheelError
from flywheel.jobs.launcher import Launcher, Listener
from flywheel.modeling.policy import load_policy
from flywheel.store.opening import open_store
from flywheel.trainers.model import fingerprint
from flywheel.types import PolicyRef
from tests.school import School
from tests.updates import VERSION, args_for, play

TWO = ("rl.processes=2", "model.device=cpu")
REACTING = (
    *("rl.guards.window=1", "rl.guards.entropulse_steps=2", "rl.guards.grad_warn=9e9", "rl.guards.ref_kl_warn=9e9"),
    *("rl.guards.entropy_warn=9", "rl.guards.entropy_react=8", "rl.guards.entropy_collapse=7", "rl.guards.restores=9"),
)
"""After every update from the second on entropy counts as collapsed."""
TOLERANCE = 0.01


def launch(school: School, config: Config, listener: Listener | None = None) -> dict[str, Any]:
    with Launcher(warm=False) as launcher:
        return launcher.run("grpo", config, args_for(school, config.home_path), config.home_path / "run", listener)


def test_two_processes_play_train_react_and_publish_what_one_does(school: School, tmp_path: Path) -> None:
    """With PPO's critic, the best state restored, half the learning rate, a KL term and a round of SFT on the way."""
    settings = ("rl.algorithm=ppo", *REACTING)
    alone, both = (school.config(tmp_path / n, *settings, *more) for n, more in (("one", ()), ("two", TWO)))
    curve: list[dict[str, float]] = []
    expected, notes = play(school, alone)
    found = launch(school, both, Listener(metrics=curve.append))
    assert [done["reaction"] for done in found["reactions"]] == [done["reaction"] for done in expected["reactions"]]
    assert {"restore_best", "halve_lr", "add_kl", "sft_round"} <= {done["reaction"] for done in found["reactions"]}
    for one, other in zip(curve, notes.curve, strict=True):
        untimed = {name: value for name, value in other.items() if not name.endswith("_seconds")}
        assert {name: one[name] for name in untimed} == pytest.approx(untimed, rel=TOLERANCE, abs=1e-4)
    first, second = (open_store(config).trajectories(VERSION) for config in (alone, both))
    assert [t.id for t in first] == [t.id for t in second]
    assert [t.advantage for t in second] == pytest.approx([t.advantage for t in first], rel=TOLERANCE, abs=1e-4)
    ref = PolicyRef(**found["policy"])
    assert fingerprint(load_policy(both, ref)[0].parameters()) == ref.fingerprint != school.policy["fingerprint"]


def test_a_killed_process_ends_the_run_with_one_sentence_and_one_process_goes_on_from_there(
    school: School, tmp_path: Path
) -> None:
    config = school.config(tmp_path, *TWO)

    def kill(point: dict[str, float]) -> None:
        if point["step"] == 2:
            os.kill(follower(tmp_path / "run"), signal.SIGKILL)

    with pytest.raises(FlywheelError, match=r"A process of grpo was killed \(SIGKILL\)") as caught:
        launch(school, config, Listener(metrics=kill))
    assert "\n" not in str(caught.value)
    result, notes = play(school, school.config(tmp_path))
    assert result["updates"] == 3
    assert notes.curve[0]["step"] > 1


def follower(run_dir: Path) -> int:
    """The process of the second rank."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            given, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if str(run_dir).encode() in given and b"\0RANK=1\0" in environment:
            return int(process.name)
    raise AssertionError("nobody follows")
