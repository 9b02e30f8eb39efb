"""Drills: a real run of policy gradient on a tiny policy is made to go wrong in each way that guards know.

Nothing of the run is stood in for: what goes wrong is done to its weights, its reward or its thresholds.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flywheel.config import Config
from flywheel.errors import TrainingPausedError
from flywheel.jobs import grpo
from flywheel.jobs.policy_gradient import loop
from flywheel.jobs.policy_gradient.evaluations import Evaluations
from flywheel.store.opening import open_store
from flywheel.trainers.model import fingerprint
from flywheel.trainers.rl import PolicyGradient
from tests.killing import in_child
from tests.school import School
from tests.updates import before_update, play, scale_head

NEVER = 9e9
LOW = ("entropy_warn", "entropy_react", "entropy_collapse", "distinct_actions")
HIGH = (
    *("grad_warn", "grad_react", "zero_variance_warn", "zero_variance_react", "ref_kl_warn", "ref_kl_react"),
    *("mismatch_warn", "mismatch_react", "truncated", "unparsed", "repeated", "shaping_gain", "env_errors"),
)
QUIET = {**dict.fromkeys(LOW, -1.0), **dict.fromkeys(HIGH, NEVER)}
"""Thresholds that nothing reaches, so that a drill hears the guard it is about."""


def drill(school: School, home: Path, *settings: str, **thresholds: float) -> Config:
    """Three updates in a home of their own; only these guards can speak, and at once."""
    values = {**QUIET, "window": 1, "rise": 0.0, "entropulse_steps": 2, **thresholds}
    return school.config(home, *(f"rl.guards.{name}={value}" for name, value in values.items()), *settings)


def reactions(result: dict[str, Any]) -> list[tuple[int, str]]:
    return [(entry["update"], entry["reaction"]) for entry in result["reactions"]]


def test_a_healthy_run_is_left_alone_to_the_last_bit(school: School, tmp_path: Path) -> None:
    """All guards at their defaults: figures are there, nothing was done, and the weights are those without guards."""
    results = []
    for name, enabled in (("on", "true"), ("off", "false")):
        config = school.config(tmp_path / name, f"rl.guards.enabled={enabled}", "rl.guards.zero_variance_warn=1.0")
        results.append(play(school, config))
    (on, notes), (off, _) = results
    assert on["policy"]["fingerprint"] == off["policy"]["fingerprint"]
    assert on["reactions"] == []
    figures = {"sampled_entropy", "grad_norm_ratio", "zero_variance_groups", "mean_abs_dlogp", "truncated", "unparsed"}
    assert figures | {"repeated", "env_errors", "guards_warned", "guards_reacted"} <= notes.curve[0].keys()
    assert notes.curve[0]["mean_abs_dlogp"] < 1e-4
    rows = {row["guard"]: row for row in on["guards"]}
    assert rows["mismatch"]["worst"] < 1e-4
    assert rows["entropy"]["last"] is None, "three updates are fewer than a window"
    assert off["guards"] == []
    json.dumps(on)


def test_falling_entropy_halves_the_rate_raises_the_clip_and_adds_kl(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_update(monkeypatch, 0, scale_head(1.2))
    config = drill(school, tmp_path, "rl.steps=5", entropy_warn=0.99, entropy_react=0.98)
    result, notes = play(school, config)
    first = reactions(result)[0][0]  # by chance success may rise at one of them, and the guard then waits
    assert reactions(result)[:3] == [(first, "raise_clip"), (first, "add_kl"), (first, "halve_lr")]
    assert notes.curve[first - 1]["lr"] == config.rl.lr
    assert notes.curve[first]["lr"] == config.rl.lr / 2
    assert notes.curve[first]["ref_kl"] > 0, "measured against the policy of the start"
    assert result["reactions"][1]["did"] == "the KL coefficient is 0.001"
    assert any("entropy is" in line and "the learning rate is" in line for line in notes.lines)


def test_collapsed_entropy_restores_the_best_state_and_learns_from_successes(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: dict[int, str] = {}
    real = PolicyGradient.restore

    def restore(trainer: PolicyGradient, update: int) -> None:
        real(trainer, update)
        weights[update] = fingerprint(trainer.learner.policy.model.parameters())

    monkeypatch.setattr(PolicyGradient, "restore", restore)
    before_update(monkeypatch, 1, scale_head(50.0))
    config = drill(school, tmp_path, entropy_collapse=0.5)
    result, notes = play(school, config)
    assert reactions(result) == [(3, "restore_best"), (3, "sft_round")]
    assert "2 steps of SFT on" in result["reactions"][1]["did"]
    assert list(weights) == [1]
    assert result["policy"]["fingerprint"] != weights[1], "the round of SFT moved it on"
    assert notes.curve[2]["sampled_entropy"] < 0.5 * notes.curve[0]["sampled_entropy"]


def test_a_poisoned_batch_is_skipped_and_a_burst_of_them_restores(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinite gradients at every step of the third update. The state after the second is not known to be sound."""
    poisoned: list[str] = []

    def harm(trainer: PolicyGradient) -> None:
        poisoned.append(fingerprint(trainer.learner.policy.model.parameters()))
        monkeypatch.setattr(trainer.learner._optimisation, "backward", lambda loss: real(trainer, loss * torch.inf))

    def real(trainer: PolicyGradient, loss: torch.Tensor) -> None:
        loss.backward()

    before_update(monkeypatch, 2, harm)
    config = drill(school, tmp_path, "rl.epochs=4", grad_warn=5.0, grad_react=20.0)
    result, notes = play(school, config)
    assert reactions(result) == [(3, "skip_step"), (3, "restore_best"), (3, "halve_lr")]
    assert notes.curve[2]["skipped"] == 1.0
    assert notes.curve[2]["recent_skips"] == 4.0
    assert notes.curve[1]["skipped"] == 0.0
    assert result["reactions"][1]["did"] == "the state after update 1 was restored", (
        "the last that was known to be sound"
    )
    assert len(poisoned) == 1
    assert result["policy"]["fingerprint"] != poisoned[0]


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_dead_groups_pause_with_a_reason_and_the_run_goes_on(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: float
) -> None:
    """None solved, or all: three updates without anything to learn. Then the tasks are mended, and it goes on."""
    config = drill(school, tmp_path, "rl.steps=4", "rl.shaping=0.0", zero_variance_react=0.9)
    score = grpo.score
    with monkeypatch.context() as patch:
        patch.setattr(grpo, "score", lambda t, *given: _flat(score(t, *given), reward))
        with pytest.raises(TrainingPausedError, match=r"zero_variance is 1, above 0.9 after update 3") as caught:
            play(school, config)
    assert "\n" not in str(caught.value)
    assert "turn the flywheel again" in str(caught.value)
    result, notes = play(school, config)
    assert [point["step"] for point in notes.curve] == [4]
    assert result["updates"] == 4
    assert {t.policy.version for t in open_store(config).trajectories("grpo-iter-01")} == {
        f"grpo-iter-01@{number}" for number in range(4)
    }


def _flat(trajectory: Any, reward: float) -> Any:
    from dataclasses import replace

    return replace(trajectory, task_reward=reward, shaped_reward=reward)


def test_an_engine_that_disagrees_with_the_trainer_is_a_reason_to_pause(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_update(monkeypatch, 1, scale_head(1.5))
    config = drill(school, tmp_path, mismatch_warn=0.05, mismatch_react=0.1)
    with pytest.raises(TrainingPausedError, match=r"mismatch is .*above 0.1 after update 2; check that the engine"):
        play(school, config)


def test_an_engine_that_is_a_little_off_is_corrected_for(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_update(monkeypatch, 0, scale_head(1.1))
    result, notes = play(school, drill(school, tmp_path, mismatch_warn=1e-3))
    assert reactions(result) == [(1, "correct")], "once, and from then on"
    assert "correction_weight" not in notes.curve[0]
    assert all("correction_weight" in point for point in notes.curve[1:])


def test_hacked_shaping_loses_weight(school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shaped reward rises from update to update with task success flat; later rewards have half the shaping."""
    rises = Evaluations.add

    def add(made: Evaluations, success: float, reward: float) -> bool:
        return rises(made, 0.3, 0.3 + 0.1 * len(made.success))

    monkeypatch.setattr(Evaluations, "add", add)
    config = drill(school, tmp_path, shaping_gain=0.05, shaping_evaluations=2)
    result, _ = play(school, config)
    assert reactions(result) == [(2, "cut_shaping"), (3, "cut_shaping")]
    by_update: dict[str, list[float]] = {}
    for trajectory in open_store(config).trajectories("grpo-iter-01"):
        terms = trajectory.reward_terms
        if trajectory.task_reward == 0.0 and not any(terms[name] for name in terms if name.endswith("penalty")):
            share = (trajectory.shaped_reward or 0.0) / terms["partial"]
            by_update.setdefault(trajectory.policy.version, []).append(share)
    assert {name: pytest.approx(np.mean(shares)) for name, shares in by_update.items()} == {
        "grpo-iter-01@0": 0.3,
        "grpo-iter-01@1": 0.3,
        "grpo-iter-01@2": 0.15,
    }


def test_kl_that_grows_doubles_its_coefficient_and_moves_the_reference_only_after_a_gain(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = drill(school, tmp_path / "kl", "rl.kl=0.01", ref_kl_warn=1e-6)
    result, _ = play(school, config)
    assert [entry["did"] for entry in result["reactions"]] == [
        "the KL coefficient is 0.02",
        "the KL coefficient is 0.04",
    ]
    for gained, expected in ((True, [(2, "move_reference")]), (False, [])):
        monkeypatch.setattr(Evaluations, "gained", gained)
        config = drill(school, tmp_path / str(gained), "rl.kl=0.01", ref_kl_warn=1e-6, ref_kl_react=2e-6)
        result, notes = play(school, config)
        assert reactions(result) == expected
        assert (notes.curve[2]["ref_kl"] == 0.0) == gained


def test_drift_from_the_start_is_measured_without_a_kl_term(school: School, tmp_path: Path) -> None:
    """At each evaluation; with nothing to double and nothing to move, it only warns."""
    config = drill(school, tmp_path, "rl.guards.window=2", "rl.steps=4", ref_kl_warn=1e-9, ref_kl_react=2e-9)
    result, notes = play(school, config)
    assert ["ref_kl" in point for point in notes.curve] == [False, True, False, True]
    assert min(notes.curve[1]["ref_kl"], notes.curve[3]["ref_kl"]) > 0
    assert reactions(result) == []
    assert next(row for row in result["guards"] if row["guard"] == "ref_kl")["reacted"] == 2


def test_long_episodes_are_capped_and_unreadable_answers_bring_a_round_of_sft(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    plan = loop.plan

    def planned(*given: Any, **named: Any) -> Any:
        limits.append(named["max_turns"])
        return plan(*given, **named)

    monkeypatch.setattr(loop, "plan", planned)
    result, _ = play(school, drill(school, tmp_path, "env.max_turns=8", truncated=-1.0, unparsed=-1.0))
    first, capped = next((e["update"], e["did"]) for e in result["reactions"] if e["reaction"] == "cap_turns")
    assert limits[:first] == [8] * first
    assert limits[first] < 8
    assert capped == f"episodes end after {limits[first]} turns"
    assert "sft_round" in {name for _, name in reactions(result)}


def test_repetition_pauses(school: School, tmp_path: Path) -> None:
    with pytest.raises(TrainingPausedError, match=r"repeated is .*train longer by supervision first"):
        play(school, drill(school, tmp_path, repeated=-1.0))


def test_after_too_many_restores_it_pauses(school: School, tmp_path: Path) -> None:
    config = drill(school, tmp_path, "rl.guards.restores=1", "rl.guards.grad_skips=-1", grad_react=-1.0)
    with pytest.raises(TrainingPausedError, match=r"grad_skips is .*after update 2; lower rl.lr"):
        play(school, config)


def test_killed_between_reactions_it_ends_with_the_very_same_weights(school: School, tmp_path: Path) -> None:
    """Every update restores, halves the rate, adds KL, and learns from what SQL finds; killed in the third one."""

    def run(home: Path, kill: bool) -> str:
        def harm(_: PolicyGradient) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.MonkeyPatch.context() as patch:
            if kill:
                before_update(patch, 2, harm)
            config = drill(school, home, "rl.guards.restores=9", distinct_actions=NEVER, grad_skips=-1, unparsed=-1.0)
            return str(play(school, config)[0]["policy"]["fingerprint"])

    for home in (tmp_path / "whole", tmp_path / "parts"):
        home.mkdir()
    expected = in_child(lambda: run(tmp_path / "whole", kill=False))
    assert in_child(lambda: run(tmp_path / "parts", kill=True)) is None
    assert in_child(lambda: run(tmp_path / "parts", kill=False)) == expected


def test_groups_without_spread_are_replaced_while_there_are_too_many(school: School, tmp_path: Path) -> None:
    config = drill(school, tmp_path, "rl.group=2", "rl.shaping=0.0", zero_variance_warn=-1.0)
    result, notes = play(school, config)
    assert reactions(result) == [(1, "resample")], "said once, done until the share falls"
    assert result["episodes"] > 3 * 3 * 2
    assert notes.curve[1]["informative_groups"] == 1.0
