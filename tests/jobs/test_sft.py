"""Fine-tuning as a stage: sets in, a policy that loads out; resumable until it is done, fresh afterwards."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from flywheel.errors import DataError, PolicyError
from flywheel.jobs import sft, verify
from flywheel.jobs.launcher import Launcher, Listener
from flywheel.modeling.policy import load_policy
from flywheel.trainers.model import fingerprint
from flywheel.types import PolicyRef
from flywheel.workspace import read_policy
from tests.killing import in_child, until_done
from tests.school import School
from tests.tiny import Notes


def args_for(school: School, out: Path, **changes: Any) -> dict[str, Any]:
    given = {"sets": [str(school.shown)], "init": asdict(school.tiny.policy), "out": str(out)}
    return {**given, "version": out.name, "steps": 6, "seed": 1, **changes}


def test_it_leaves_a_policy_that_loads(school: School) -> None:
    ref = PolicyRef(**school.policy)
    assert (ref.version, ref.parent, ref.uri) == ("sft", "untrained", str(school.home / "sft"))
    assert read_policy(school.home / "sft") == ref
    model, _ = load_policy(school.tiny.config, ref)
    assert fingerprint(model.parameters()) == ref.fingerprint != school.tiny.policy.fingerprint
    assert verify.run(school.tiny.config, {"policy": asdict(ref)}, Notes())["policy"] == "sft"


def test_it_says_how_it_went(school: School) -> None:
    result, curve = school.sft, school.notes.curve
    assert result["steps"] == len(curve) == 30
    assert result["trajectories"] == 8
    assert result["loss"] < 0.1 < curve[0]["loss"]
    assert result["tokens"] > 0
    assert result["tokens_per_second"] > 0
    assert result["seconds"] > 0
    assert {"loss", "grad_norm", "lr", "tokens_per_second"} <= curve[0].keys()
    assert "8 trajectories" in school.notes.lines[0]


def test_several_sets_are_one(school: School, tmp_path: Path) -> None:
    twice = args_for(school, tmp_path / "twice", sets=[str(school.shown)] * 2, steps=1)
    assert sft.run(school.config(tmp_path), twice, Notes())["trajectories"] == 16


def test_reading_lessons_join_the_set(school: School, tmp_path: Path) -> None:
    config = school.config(tmp_path, "sft.reading=0.5")
    assert sft.run(config, args_for(school, tmp_path / "read", steps=1), Notes())["trajectories"] == 8 + 8


def test_killed_and_started_again_it_ends_the_same_and_leaves_no_states(school: School, tmp_path: Path) -> None:
    config = school.config(tmp_path, "sft.save_every=1")
    random = np.random.default_rng(1)

    def work(name: str) -> str:
        return str(sft.run(config, args_for(school, tmp_path / name), Notes())["policy"]["fingerprint"])

    expected = in_child(lambda: work("whole"))
    found, kills = until_done(lambda: work("killed"), lambda kills: random.uniform(0.3, 0.6) + 0.1 * kills)
    assert found == expected
    assert kills >= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "whole"]


def test_states_of_a_run_with_another_set_are_not_gone_on_from(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run dies, the set is made anew, the run is started again: it must not finish with the old set's weights."""
    config, out = school.config(tmp_path, "sft.save_every=2"), tmp_path / "iter-01"
    args = args_for(school, out)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sft, "save_policy", killed)
        with pytest.raises(KeyboardInterrupt):
            sft.run(config, args, Notes())
    assert list((tmp_path / "iter-01.trainer").rglob("step-000004"))
    datasets.load_from_disk(school.shown).select(range(4)).save_to_disk(tmp_path / "smaller")
    for sets in ([str(tmp_path / "smaller")], [str(school.shown)]):
        notes = Notes()
        sft.run(config, args | {"sets": sets}, notes)
        assert len(notes.curve) == 6


def test_bad_input_is_one_sentence(school: School, tmp_path: Path) -> None:
    config = school.config(tmp_path)
    with pytest.raises(DataError, match="nowhere holds no training set"):
        sft.run(config, args_for(school, tmp_path / "x", sets=[str(tmp_path / "nowhere")]), Notes())
    gone = asdict(PolicyRef("gone", str(tmp_path / "gone")))
    with pytest.raises(PolicyError, match="cannot be loaded"):
        sft.run(config, args_for(school, tmp_path / "x", init=gone), Notes())
    assert not (tmp_path / "x").exists()


def test_under_a_launcher_two_processes_leave_one_policy(school: School, tmp_path: Path) -> None:
    """The stage as the command line starts it: torchrun, FSDP2 over gloo, one result, one policy that loads."""
    config = school.config(tmp_path, "sft.processes=2", "model.device=cpu", "sft.pack_tokens=400")
    args, lines = args_for(school, tmp_path / "both", steps=2), []
    with Launcher(warm=False) as launcher:
        listener = Listener(log=lines.append)
        result = launcher.run("sft", config, args, tmp_path / "run", listener)
        nowhere = args | {"sets": [str(tmp_path / "nowhere")]}
        with pytest.raises(DataError, match="holds no training set"):
            launcher.run("sft", config, nowhere, tmp_path / "run")
    ref = PolicyRef(**result["policy"])
    model, _ = load_policy(school.tiny.config, ref)
    assert fingerprint(model.parameters()) == ref.fingerprint != school.tiny.policy.fingerprint
    assert sum("tokens to train on" in line for line in lines) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "run"]
