"""Policy gradient and fine-tuning under a prompt window, as stages: trajectories are cut, and stay one row each."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from flywheel.jobs import grpo, sft
from flywheel.trainers.credit import Credit
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from tests.jobs.test_grpo import args_for, stored
from tests.school import School
from tests.tiny import Notes

WINDOW = ("prompt.window=1", "prompt.slack=0")


def test_an_update_on_trajectories_that_were_cut(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = PolicyGradient.update, list[Rollout]()

    def update(trainer: PolicyGradient, given: Sequence[Rollout], credits: Sequence[Credit]) -> dict[str, float]:
        seen.extend(given)
        return real(trainer, given, credits)

    monkeypatch.setattr(PolicyGradient, "update", update)
    config, notes = school.config(tmp_path, *WINDOW, "rl.steps=1", "rl.shaping=0.3"), Notes()
    grpo.run(config, args_for(school, tmp_path), notes)
    turns = {trajectory.id: len(trajectory.turns) for trajectory in stored(config)}
    assert len(seen) == len(turns) == 12
    assert [len(rollout.sample.documents) for rollout in seen] == [turns[r.trajectory.id] for r in seen]
    assert max(turns.values()) > 1
    # The trainer sees the very distribution that the engine sampled from, after a cut as before it.
    assert notes.curve[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


def test_fine_tuning_on_demonstrations_that_are_cut(school: School, tmp_path: Path) -> None:
    """As many trajectories, the same answers to learn, seen as the policy will see them when it plays."""
    args = {"sets": [str(school.shown)], "init": asdict(school.tiny.policy), "out": str(tmp_path / "out")}
    args |= {"version": "out", "steps": 2, "seed": 1}
    whole, cut = Notes(), Notes()
    sft.run(school.config(tmp_path), args, whole)
    sft.run(school.config(tmp_path, *WINDOW), args, cut)
    assert cut.lines[0] == whole.lines[0]
    assert cut.curve[0]["tokens"] > whole.curve[0]["tokens"]
