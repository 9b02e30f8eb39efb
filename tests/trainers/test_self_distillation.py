"""Self-distillation on real trajectories: what is taught, what is left alone, and states that go on exactly."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flywheel.errors import TrainingError
from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.distillation import distillation_loss, ema
from flywheel.trainers.hindsight import with_hindsight
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.packing import PackedRow, pack
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.self_distillation import SelfDistillation
from tests.tiny import Tiny, episodes, some_tasks
from tests.trainers import test_rl
from tests.trainers.resuming import goes_on_alike

SOLUTION_ROWS, MASKED_ROWS = 7, 1


@pytest.fixture(scope="module")
def rollouts(tiny: Tiny) -> list[Rollout]:
    """Two groups of four: one with two successes, one with a lone one, which nothing can be told."""
    played = episodes(tiny, some_tasks(2), samples=4)
    rewards = (1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    judged = [replace(trajectory, task_reward=reward) for trajectory, reward in zip(played, rewards, strict=True)]
    return [Rollout(trajectory, tiny.chat.sample(trajectory), trajectory.task_reward or 0.0) for trajectory in judged]


def trainer(policy: PolicyModel, states: Path, **sdpo: Any) -> PolicyGradient:
    return test_rl.trainer(policy, states, algorithm="sdpo", minibatches=2, sdpo=sdpo)


def objective(made: PolicyGradient) -> SelfDistillation:
    assert isinstance(made.learner._objective, SelfDistillation)
    return made.learner._objective


def update(made: PolicyGradient, rollouts: list[Rollout]) -> dict[str, float]:
    return made.update(rollouts, made.credit(rollouts))


def rows(tiny: Tiny, made: PolicyGradient, rollouts: list[Rollout]) -> tuple[PackedRow, PackedRow, Any, Denominators]:
    """What the student and its teacher read of the rollouts that train."""
    credits = made.credit(rollouts)
    objective(made).begin(rollouts, credits)
    pairs = [(r, c) for r, c in zip(rollouts, credits, strict=True) if objective(made).trains(r, c)]
    plain = pack([rollout.sample for rollout, _ in pairs], image_id=tiny.chat.image_id)
    told = [objective(made)._conditioned[id(rollout.sample)] for rollout, _ in pairs]
    tokens = sum(int(rollout.sample.train_mask.sum()) for rollout in rollouts)
    count = Denominators(tokens=tokens, rows=len(rollouts), horizon=48)
    return plain, pack(told, image_id=tiny.chat.image_id), [credit for _, credit in pairs], count


def test_the_loss_is_the_published_one_over_all_tokens_of_the_step(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path
) -> None:
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, alpha=0.3, top_k=20)
    plain, told, credits, count = rows(tiny, made, rollouts)
    with torch.no_grad():
        loss, figures = objective(made).loss(plain, credits, count)
        student, teacher = policy.distribution(plain), policy.distribution(told)
        expected = distillation_loss(student, teacher, alpha=0.3, k=20)
    assert float(loss) == pytest.approx(float(expected.sum()) / count.tokens, rel=1e-4)
    assert figures["divergence"] == pytest.approx(float(expected.mean()), rel=1e-4)
    assert figures["tokens"] == len(plain.targets_K)


def test_the_teacher_judges_the_same_tokens_and_sees_the_hindsight(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path
) -> None:
    policy = tiny.fresh()
    plain, told, *_ = rows(tiny, trainer(policy, tmp_path), rollouts)
    assert np.array_equal(plain.targets_K, told.targets_K)
    assert np.array_equal(plain.document_K, told.document_K)
    with torch.no_grad():
        moved = (policy.logprobs(plain) - policy.logprobs(told)).abs()
    assert float(moved.max()) > 0.01


def test_answers_that_differ_are_refused(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(sample: Any, *given: Any) -> Any:
        told = with_hindsight(sample, *given)
        return replace(told, input_ids=np.where(told.train_mask, told.input_ids[-1], told.input_ids))

    monkeypatch.setattr("flywheel.trainers.self_distillation.with_hindsight", other)
    with pytest.raises(TrainingError, match="changed the answers"):
        update(trainer(tiny.fresh(), tmp_path), rollouts)


def test_an_update_trains_the_student_counts_what_it_masks_and_leaves_the_teacher_without_gradient(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path
) -> None:
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, teacher_rate=0.25)
    start = fingerprint(policy.trainable)
    teacher = objective(made)._teacher._own.model
    before = [weight.clone() for weight in objective(made)._teacher._weights.values()]
    figures = update(made, rollouts)
    assert fingerprint(policy.trainable) != start
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert figures["hindsight_solution"] == SOLUTION_ROWS / len(rollouts)
    assert figures["hindsight_masked"] == MASKED_ROWS / len(rollouts)
    assert figures["hindsight_feedback"] == 0.0
    expected = [ema(old, new.detach(), 0.25) for old, new in zip(before, policy.trainable, strict=True)]
    for weight, wanted in zip(objective(made)._teacher._weights.values(), expected, strict=True):
        torch.testing.assert_close(weight, wanted)


def test_a_batch_without_hindsight_changes_nothing(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, feedback=False)
    before = fingerprint(policy.model.parameters())
    failed = [replace(rollout, trajectory=replace(rollout.trajectory, task_reward=0.0)) for rollout in rollouts]
    figures = update(made, failed)
    assert fingerprint(policy.model.parameters()) == before
    assert "loss" not in figures
    assert figures["hindsight_masked"] == 1.0
    assert made.updates == 1


def test_failures_learn_from_how_they_ended(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    policy = tiny.fresh()
    failed = [replace(rollout, trajectory=replace(rollout.trajectory, task_reward=0.0)) for rollout in rollouts]
    figures = update(trainer(policy, tmp_path), failed)
    assert figures["hindsight_feedback"] == 1.0
    assert figures["divergence"] > 0


def test_a_trust_region_mixes_the_start_with_the_student(tiny: Tiny, rollouts: list[Rollout], tmp_path: Path) -> None:
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, teacher="trust_region", teacher_rate=0.3)
    before = tiny.fresh()
    update(made, rollouts)
    _, told, *_ = rows(tiny, made, rollouts)
    with torch.no_grad():
        mixed = 0.7 * before.distribution(told) + 0.3 * policy.distribution(told)
        found = objective(made)._teacher.distribution(told)
    torch.testing.assert_close(found.exp(), mixed.softmax(-1), atol=1e-5, rtol=1e-4)


def test_a_teacher_that_practises_leaves_the_student_alone_until_it_teaches(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path
) -> None:
    """Successes become likelier to it given a solution."""
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, reading_steps=2, reading_updates=3, teacher_rate=0.0)
    start = fingerprint(policy.model.parameters())
    _, told, *_ = rows(tiny, trainer(tiny.fresh(), tmp_path / "look"), rollouts[:2])

    def likelihood() -> float:
        with torch.no_grad():
            return float(objective(made)._teacher._own.logprobs(told).mean())

    before = likelihood()
    for _ in range(3):
        update(made, rollouts)
    assert likelihood() > before + 0.1
    assert fingerprint(policy.model.parameters()) == start
    update(made, rollouts)
    assert fingerprint(policy.model.parameters()) != start


@pytest.mark.parametrize("teacher", ["ema", "trust_region"])
def test_resumed_updates_are_the_same_updates(
    tiny: Tiny, rollouts: list[Rollout], tmp_path: Path, teacher: str
) -> None:
    config = {"teacher": teacher, "teacher_rate": 0.2, "reading_steps": 2, "reading_updates": 1}
    goes_on_alike(tiny, rollouts, tmp_path, lambda policy, states: trainer(policy, states, **config))
