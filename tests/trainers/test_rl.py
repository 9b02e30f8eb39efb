"""Policy gradient on real trajectories of the tiny policy: every algorithm, exact zeros, splitting and resuming."""

from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flywheel.errors import ConfigError, TrainingError
from flywheel.sections import KlEstimator, RlConfig
from flywheel.trainers.algorithms import ALGORITHMS
from flywheel.trainers.credit import Credit
from flywheel.trainers.ensemble import Ensemble
from flywheel.trainers.learner import Learner
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.packing import pack
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.types import Trajectory, Wait
from tests.tiny import Tiny, episodes, some_tasks
from tests.trainers.resuming import goes_on_alike

BY_ADVANTAGE = [name for name, entry in ALGORITHMS.items() if entry.objective == "policy"]
HORIZON = 12 * 4
"""Tokens of an answer times turns of an episode, as the tiny policy plays here."""


@pytest.fixture(scope="module")
def rollouts(tiny: Tiny) -> list[Rollout]:
    """Three groups of four: one mixed, one mixed the other way round, one without spread."""
    played = episodes(tiny, some_tasks(3), samples=4)
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.25, 1.0, 0.5, 0.5, 0.5, 0.5]
    return [judged(tiny, t, reward) for t, reward in zip(played, rewards, strict=True)]


def judged(tiny: Tiny, played: Trajectory, reward: float) -> Rollout:
    """As if its babble had been actions, and the task's checker had given this reward."""
    turns = tuple(replace(turn, action=Wait()) for turn in played.turns)
    return Rollout(replace(played, turns=turns, task_reward=reward), tiny.chat.sample(played), reward)


def learner(policy: PolicyModel, pack_tokens: int = 4096, **config: Any) -> Learner:
    """One that trains alone, from what the policy is now."""
    settings = RlConfig(**{"algorithm": "grpo", "lr": 1e-3, "value_pretraining": 0, **config})
    start = partial(policy.twin, no_start)
    return Learner(policy, settings, Ensemble(), start=start, pack_tokens=pack_tokens, horizon=HORIZON, seed=0)


def no_start() -> PolicyModel:
    raise AssertionError("only spread weights are loaded again")


def trainer(policy: PolicyModel, states: Path, pack_tokens: int = 4096, **config: Any) -> PolicyGradient:
    return PolicyGradient(learner(policy, pack_tokens, **config), states)


def update(made: PolicyGradient, rollouts: list[Rollout]) -> dict[str, float]:
    return made.update(rollouts, made.credit(rollouts))


def advantages(made: PolicyGradient, rollouts: list[Rollout]) -> list[float]:
    return [one.advantage for one in made.credit(rollouts)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_table_takes_an_update(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, name: str
) -> None:
    policy = tiny.fresh()
    vision = list(policy.model.model.visual.parameters())
    before, frozen = fingerprint(policy.trainable), fingerprint(vision)
    made = trainer(policy, tmp_path, algorithm=name)
    figures = update(made, rollouts)
    assert fingerprint(policy.trainable) != before
    assert fingerprint(vision) == frozen
    assert all(parameter.grad is None for parameter in vision)
    assert all(np.isfinite(value) for value in figures.values()), figures
    if "groups" in ALGORITHMS[name].needs:
        assert figures["informative_groups"] == pytest.approx(2 / 3)
    assert figures["reward"] == pytest.approx(np.mean([rollout.reward for rollout in rollouts]))
    assert figures["grad_norm"] > 0
    assert made.updates == 1


@pytest.mark.parametrize("name", BY_ADVANTAGE)
def test_an_update_raises_what_was_better_than_its_group(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, name: str
) -> None:
    """The sign that matters: logprobs of the best of a group rise against those of the others."""
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, algorithm=name, lr=1e-4)
    credits = made.credit(rollouts)
    advantage_B = np.array([one.advantage for one in credits])

    def gap() -> float:
        with torch.no_grad():
            row = pack([rollout.sample for rollout in rollouts], image_id=tiny.chat.image_id)
            logp_K = policy.logprobs(row).numpy()
        mean_B = np.array([logp_K[row.document_K == b].mean() for b in range(len(rollouts))])
        return float((mean_B * advantage_B).sum())

    before = gap()
    made.update(rollouts, credits)
    assert gap() > before


def test_groups_without_spread_change_nothing_at_all(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """Not even by the optimiser's momentum: a step is not taken."""
    policy = tiny.fresh()
    made = trainer(policy, tmp_path)
    update(made, rollouts)
    before = fingerprint(policy.model.parameters())
    flat = [replace(rollout, reward=0.7) for rollout in rollouts]
    assert not any(advantages(made, flat))
    figures = update(made, flat)
    assert fingerprint(policy.model.parameters()) == before
    assert figures["informative_groups"] == 0.0
    assert figures["mean_abs_advantage"] == 0.0
    assert "loss" not in figures
    assert made.updates == 2


def test_lone_episodes_are_no_group(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    made = trainer(tiny.fresh(), tmp_path)
    assert advantages(made, rollouts[:1]) == [0.0]


def test_the_first_ratio_is_one(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """What the engine recorded is what the trainer computes, so nothing is off-policy before the first step."""
    figures = update(trainer(tiny.fresh(), tmp_path), rollouts)
    assert figures["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert figures["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert figures["clip_fraction"] == 0.0


def test_a_second_pass_is_off_policy(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """Guards the test above."""
    figures = update(trainer(tiny.fresh(), tmp_path, epochs=2), rollouts)
    assert figures["approx_kl"] > 1e-4


@pytest.mark.parametrize("correction", ["token_tis", "icepop", "sequence_tis", "sequence_rejection", "token_rejection"])
def test_corrections_leave_an_engine_that_agrees_alone(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, correction: str
) -> None:
    plain = update(trainer(tiny.fresh(), tmp_path / "plain"), rollouts)
    figures = update(trainer(tiny.fresh(), tmp_path / "corrected", correction=correction), rollouts)
    assert figures["loss"] == pytest.approx(plain["loss"], abs=1e-4)
    assert figures["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-3)
    assert (figures["correction_weight"], figures["kept"]) == pytest.approx((1, 1), abs=1e-4)
    assert figures["mean_abs_dlogp"] == pytest.approx(plain["mean_abs_dlogp"], abs=1e-5)


def test_corrections_notice_an_engine_that_does_not(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """An engine that was surer of all it said by half a nat: weights of e^-.5, and rows out of bounds."""
    shifted = [
        replace(one, sample=replace(one.sample, logprobs=one.sample.logprobs + np.float32(0.5))) for one in rollouts
    ]
    weighed = update(trainer(tiny.fresh(), tmp_path / "tis", correction="token_tis"), shifted)
    assert weighed["mean_abs_dlogp"] == pytest.approx(0.5, abs=1e-3)
    assert weighed["mismatch_k3"] == pytest.approx(np.exp(-0.5) - 0.5, abs=1e-3)
    assert weighed["correction_weight"] == pytest.approx(np.exp(-0.5), abs=1e-3)
    rejected = update(trainer(tiny.fresh(), tmp_path / "rejected", correction="sequence_rejection"), shifted)
    assert rejected["kept"] == 0
    assert "loss" not in rejected


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
def test_the_estimator_of_kl_is_a_choice(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, estimator: KlEstimator
) -> None:
    """After one update the policy has left its reference; what is logged is what the estimator says."""
    made = trainer(tiny.fresh(), tmp_path, kl=0.1, kl_estimator=estimator)
    update(made, rollouts)
    figure = update(made, rollouts)["ref_kl"]
    assert np.isfinite(figure)
    assert figure != 0
    assert figure > 0 or estimator == "k1"


def test_the_reference_is_the_policy_at_the_start(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, kl=0.1)
    first, second = update(made, rollouts), update(made, rollouts)
    assert first["ref_kl"] == 0.0
    assert second["ref_kl"] > 1e-5


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        *((name, {}) for name in ("grpo", "gspo", "dr_grpo", "dapo", "rloo", "ppo", "gigpo", "dart", "webrl")),
        ("gspo", {"kl": 0.1, "entropy": 0.01}),
    ],
)
def test_cutting_a_step_into_rows_changes_nothing(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, name: str, terms: dict[str, float]
) -> None:
    """Compared before the optimiser, whose normalisation would hide a factor."""
    found, figures = [], []
    for pack_tokens in (10**6, 700, 1):
        policy = tiny.fresh()
        made = trainer(policy, tmp_path / str(pack_tokens), pack_tokens, algorithm=name, **terms)
        gradients: list[torch.Tensor] = []

        def instead_of_a_step(policy: PolicyModel = policy, into: list[torch.Tensor] = gradients) -> dict[str, float]:
            into += [parameter.grad.flatten() for parameter in policy.trainable if parameter.grad is not None]
            return {}

        made.learner._optimisation.step = instead_of_a_step  # type: ignore[method-assign]
        figures.append(update(made, rollouts))
        found.append(torch.cat(gradients))
    for other, measured in zip(found[1:], figures[1:], strict=True):
        assert (other - found[0]).norm() <= 1e-5 * found[0].norm()
        assert measured == pytest.approx(figures[0], rel=1e-4, abs=1e-6)


def test_minibatches_are_steps_and_hold_each_trajectory_once(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path
) -> None:
    made = trainer(tiny.fresh(), tmp_path, minibatches=5, epochs=2, kl=0.01)
    seen: list[list[str]] = []
    step = made.learner._step

    def noted(part: list[Rollout], credits: list[Credit]) -> Any:
        seen.append([rollout.sample.trajectory_id for rollout in part])
        return step(part, credits)

    made.learner._step = noted  # type: ignore[method-assign,assignment]
    update(made, rollouts)
    everyone = sorted(rollout.sample.trajectory_id for rollout in rollouts)
    assert len(seen) == 10
    first, second = (sorted(chain.from_iterable(steps)) for steps in (seen[:5], seen[5:]))
    assert first == second == everyone
    assert seen[:5] != seen[5:]


def test_more_minibatches_than_trajectories(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """As when most episodes of an update were lost."""
    figures = update(trainer(tiny.fresh(), tmp_path, minibatches=8), rollouts[:3])
    assert np.isfinite(figures["loss"])


def test_a_trajectory_without_a_trained_token_is_refused(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    sample = rollouts[0].sample
    silent = replace(rollouts[0], sample=replace(sample, train_mask=np.zeros_like(sample.train_mask)))
    made = trainer(tiny.fresh(), tmp_path)
    with pytest.raises(TrainingError, match="without a trained token"):
        update(made, [silent, *rollouts[1:4]])


def test_an_unknown_algorithm_is_refused_by_name(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'gspo'"):
        trainer(tiny.fresh(), tmp_path, algorithm="gsppo")


def test_dapo_punishes_length_and_others_do_not(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """Same reward, one answer at the limit of tokens: the penalty alone makes the difference."""
    sample = rollouts[0].sample
    short = np.zeros_like(sample.train_mask)
    short[np.flatnonzero(sample.train_mask)[:4]] = True
    long = np.zeros_like(sample.train_mask)
    long[-HORIZON:] = True
    pair = [replace(rollouts[0], sample=replace(sample, train_mask=mask), reward=1.0) for mask in (short, long)]
    assert advantages(trainer(tiny.fresh(), tmp_path, algorithm="grpo"), pair) == [0.0, 0.0]
    first, second = advantages(trainer(tiny.fresh(), tmp_path, algorithm="dapo"), pair)
    assert first > 0 > second


@pytest.mark.parametrize(
    "config", [{"kl": 0.05}, {"algorithm": "vapo", "value_pretraining": 1}, {"algorithm": "webrl"}]
)
def test_resumed_updates_are_the_same_updates(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, config: dict[str, Any]
) -> None:
    """The reference stays the one of the start, and a critic goes on from what it has learned."""
    goes_on_alike(tiny, rollouts, tmp_path, lambda policy, states: trainer(policy, states, minibatches=2, **config))
