"""Replayed rows are weighed by how likely the present policy is to say them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from flywheel.trainers.algorithms import algorithm
from flywheel.trainers.credit import Credit, credit
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import pack
from flywheel.trainers.replayed import corrected
from flywheel.trainers.rollout import Rollout
from flywheel.types import TrainingSample
from tests.tiny import Tiny, episodes, shown, some_tasks
from tests.trainers.test_rl import learner, trainer


@pytest.fixture(scope="module")
def rollouts(tiny: Tiny) -> list[Rollout]:
    """One group of six, of which the first succeeded."""
    played = episodes(tiny, some_tasks(3), samples=2)
    samples = [replace(tiny.chat.sample(trajectory), group_id="g") for trajectory in played]
    return [
        Rollout(trajectory, sample, float(n == 0), replayed=True)
        for n, (trajectory, sample) in enumerate(zip(played, samples, strict=True))
    ]


def moved(tiny: Tiny) -> PolicyModel:
    """Another policy than the one that sampled."""
    policy = tiny.fresh()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.trainable:
            weight.add_(0.02 * torch.randn(weight.shape, generator=noise))
    return policy


def corrections(policy: PolicyModel, rollouts: list[Rollout]) -> list[Credit]:
    credits = credit(algorithm("grpo"), rollouts, horizon=48)
    return corrected(rollouts, credits, partial(learner(policy, pack_tokens=600).score, hidden=False))


def own_logprobs(policy: PolicyModel, sample: TrainingSample) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(policy.logprobs(pack([sample], image_id=policy.chat.image_id)).numpy())


def test_weights_are_truncated_ratios_to_the_policy_that_sampled(tiny: Tiny, rollouts: list[Rollout]) -> None:
    policy, raw = moved(tiny), []
    for rollout, after in zip(rollouts, corrections(policy, rollouts), strict=True):
        own = own_logprobs(policy, rollout.sample)
        ratio_K = np.exp(own - rollout.sample.logprobs[rollout.sample.train_mask])
        raw.append(ratio_K)
        assert after.old_logp_K == pytest.approx(own, abs=1e-4)
        assert after.weight_K == pytest.approx(np.minimum(ratio_K, 2.0), rel=1e-3)
    spread = np.concatenate(raw)
    assert spread.min() < 0.9
    assert spread.max() > 2.0


def test_only_replayed_rows_are_corrected(tiny: Tiny, rollouts: list[Rollout]) -> None:
    mixed = [replace(rollout, replayed=n in (1, 4)) for n, rollout in enumerate(rollouts)]
    for rollout, after in zip(mixed, corrections(moved(tiny), mixed), strict=True):
        recorded_K = rollout.sample.logprobs[rollout.sample.train_mask]
        assert bool((after.weight_K == 1).all()) is not rollout.replayed
        assert bool((after.old_logp_K == recorded_K).all()) is not rollout.replayed


def test_what_the_present_policy_sampled_keeps_its_weight(tiny: Tiny, rollouts: list[Rollout]) -> None:
    for after in corrections(tiny.fresh(), rollouts):
        assert after.weight_K == pytest.approx(1.0, abs=2e-3)


def test_a_demonstration_weighs_as_much_as_the_policy_believes_in_it(tiny: Tiny, rollouts: list[Rollout]) -> None:
    policy, (sample,) = tiny.fresh(), shown(tiny, 1)
    (after,) = corrections(policy, [replace(rollouts[0], sample=sample)])
    assert after.weight_K == pytest.approx(np.exp(own_logprobs(policy, sample)), rel=1e-3)
    assert after.weight_K.max() <= 1.0


def test_an_update_starts_replayed_rows_at_ratio_one(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """Taken for the policy's own, the same rows meet the clip before they have taught anything."""
    figures = {}
    for replayed in (True, False):
        made = trainer(moved(tiny), tmp_path / str(replayed), algorithm="grpo")
        rows = [replace(rollout, replayed=replayed) for rollout in rollouts]
        figures[replayed] = made.update(rows, made.credit(rows))
    assert figures[True]["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert figures[True]["clip_fraction"] == 0.0
    assert figures[False]["clip_fraction"] > 0.1


def test_the_weights_reach_the_gradient(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    """A row that the policy would hardly say hardly moves it."""
    norms = []
    for shift in (0.0, 3.0):
        sample = rollouts[0].sample
        surer = np.where(sample.train_mask, sample.logprobs + shift, 0).astype(np.float32)
        row = replace(rollouts[0], sample=replace(sample, logprobs=surer))
        made = trainer(tiny.fresh(), tmp_path / str(shift), algorithm="grpo")
        (one,) = made.credit([row])
        taught = replace(one, advantage_K=np.ones_like(one.advantage_K))
        norms.append(made.update([row], [taught])["grad_norm"])
    assert norms[1] == pytest.approx(np.exp(-3.0) * norms[0], rel=0.01)
