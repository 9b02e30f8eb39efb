"""Supervised fine-tuning: exact loss and masks, exact splitting, exact resuming after kill -9."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flywheel.errors import DataError, PackingError, TrainingError
from flywheel.sections import SftConfig
from flywheel.trainers import checkpoints
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.packing import pack
from flywheel.trainers.sft import Batch, SftResult, _step, batches, row_loss, train_sft
from flywheel.types import TrainingSample
from tests.killing import commit_suicide, in_child, until_done
from tests.tiny import Notes, Tiny, shown

CONFIG = SftConfig(lr=2e-3, min_lr=2e-4, weight_decay=0.01, batch=4, pack_tokens=512)


@pytest.fixture(scope="module")
def samples(tiny: Tiny) -> list[TrainingSample]:
    return shown(tiny, 6)


def train(
    policy: PolicyModel, samples: list[TrainingSample], states: Path, *, steps: int = 8, config: SftConfig = CONFIG
) -> tuple[SftResult, Notes]:
    notes = Notes()
    result = train_sft(policy, samples, config, steps=steps, seed=1, states=states, report=notes)
    return result, notes


def gradients(policy: PolicyModel) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in policy.trainable if parameter.grad is not None]


class Recorder:
    """Stands where the optimiser stands and keeps the gradients of a step instead of taking it."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    rank, world = 0, 1

    def step(self) -> dict[str, float]:
        return {}

    def total(self, value: torch.Tensor) -> float:
        return float(value)


def test_the_loss_is_the_mean_over_trained_tokens(tiny: Tiny, samples: list[TrainingSample]) -> None:
    policy = tiny.fresh()
    row = pack(samples, image_id=tiny.chat.image_id)
    logp = policy.logprobs(row).detach()
    count = float(sum(sample.weights.sum() for sample in samples))
    assert len(logp) == count
    assert float(row_loss(policy, row, count)) == pytest.approx(-float(logp.mean()), rel=1e-6)


def test_an_all_masked_row_is_an_exact_zero(tiny: Tiny, samples: list[TrainingSample]) -> None:
    policy, nothing = tiny.fresh(), np.zeros(len(samples[0].input_ids))
    for masked in (
        replace(samples[0], weights=nothing.astype(np.float32)),
        replace(samples[0], weights=nothing.astype(np.float32), train_mask=nothing.astype(bool)),
    ):
        loss = row_loss(policy, pack([masked], image_id=tiny.chat.image_id), 1.0)
        loss.backward()
        assert float(loss) == 0.0
        assert all(not gradient.any() for gradient in gradients(policy))


def test_cutting_a_step_into_rows_changes_nothing(tiny: Tiny, samples: list[TrainingSample]) -> None:
    found, losses = [], []
    for pack_tokens in (10**6, 300, 1):
        policy = tiny.fresh()
        losses.append(_step(policy, Recorder(), Batch.of(samples, pack_tokens), None, "layer")["loss"])  # type: ignore[arg-type]
        found.append(torch.cat([gradient.flatten() for gradient in gradients(policy)]))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
    for other in found[1:]:
        assert (other - found[0]).norm() <= 1e-6 * found[0].norm()


def test_the_loss_falls(tiny: Tiny, samples: list[TrainingSample], tmp_path: Path) -> None:
    result, notes = train(tiny.fresh(), samples, tmp_path, steps=15)
    losses = [point["loss"] for point in notes.curve]
    assert len(losses) == 15
    assert losses[-1] < 0.5 * losses[0]
    assert result.loss == pytest.approx(losses[-1])
    assert result.tokens == sum(point["tokens"] for point in notes.curve)
    assert notes.done[-1] == (15, 15, "steps")


def test_a_masked_turn_has_no_say(tiny: Tiny, samples: list[TrainingSample]) -> None:
    """Its tokens may be anything; those of the other turns count as before."""
    sample = next(s for s in samples if len(s.images) >= 2)
    edges = np.flatnonzero(np.diff(sample.train_mask.astype(int)) == 1) + 1
    first_turn = np.arange(len(sample.input_ids)) < edges[1]
    masked = sample.train_mask & ~first_turn
    policy = tiny.fresh()
    row = pack([replace(sample, train_mask=masked, weights=masked.astype(np.float32))], image_id=tiny.chat.image_id)
    assert row.targets_K.tolist() == sample.input_ids[masked].tolist()
    with torch.no_grad():
        whole = policy.logprobs(pack([sample], image_id=tiny.chat.image_id))
        rest = policy.logprobs(row)
    assert torch.allclose(whole[-len(rest) :], rest, atol=1e-6)


def test_frozen_vision_is_not_moved(tiny: Tiny, samples: list[TrainingSample], tmp_path: Path) -> None:
    policy = tiny.fresh()
    vision = list(policy.model.model.visual.parameters())
    before, language = fingerprint(vision), fingerprint(policy.trainable)
    train(policy, samples, tmp_path, steps=3)
    assert fingerprint(vision) == before
    assert all(parameter.grad is None for parameter in vision)
    assert fingerprint(policy.trainable) != language


def test_a_set_without_a_trained_token_is_refused(tiny: Tiny, samples: list[TrainingSample], tmp_path: Path) -> None:
    masked = [replace(sample, weights=np.zeros_like(sample.weights)) for sample in samples]
    with pytest.raises(DataError, match="no token to train on"):
        train(tiny.fresh(), masked, tmp_path)


def test_gradients_that_are_not_finite_are_left_out_and_end_the_run(
    tiny: Tiny, samples: list[TrainingSample], tmp_path: Path
) -> None:
    policy = tiny.fresh()
    with torch.no_grad():
        policy.trainable[0].fill_(float("nan"))
    before = [fingerprint([parameter]) for parameter in policy.trainable]
    with pytest.raises(TrainingError, match="3 gradients in a row were not finite"):
        train(policy, samples, tmp_path)
    assert [fingerprint([parameter]) for parameter in policy.trainable] == before


def test_epochs_are_shuffled_and_complete() -> None:
    drawn = np.concatenate(list(islice(batches(10, 4, seed=3), 10)))
    epochs = drawn.reshape(4, 10)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(10))] * 4
    assert epochs[0].tolist() != epochs[1].tolist()
    again = np.concatenate(list(islice(batches(10, 4, seed=3), 10)))
    assert (drawn == again).all()
    assert (drawn != np.concatenate(list(islice(batches(10, 4, seed=4), 10)))).any()


def test_a_batch_may_be_larger_than_the_set() -> None:
    (batch,) = islice(batches(3, 8, seed=0), 1)
    assert sorted(np.bincount(batch).tolist()) == [2, 3, 3]


def child(tiny: Tiny, samples: list[TrainingSample], states: Path, save_every: int) -> Callable[[], str]:
    """Eight steps in a child process; the fingerprint of the weights they lead to."""

    def work() -> str:
        policy = tiny.fresh()
        train(policy, samples, states, config=CONFIG.model_copy(update={"save_every": save_every}))
        return fingerprint(policy.model.parameters())

    return work


@pytest.fixture(scope="module")
def uninterrupted(tiny: Tiny, samples: list[TrainingSample], tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(in_child(child(tiny, samples, tmp_path_factory.mktemp("whole"), save_every=0)))


def test_saving_changes_nothing(tiny: Tiny, samples: list[TrainingSample], tmp_path: Path, uninterrupted: str) -> None:
    assert in_child(child(tiny, samples, tmp_path, save_every=3)) == uninterrupted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000006"]


def test_killed_at_random_it_ends_with_the_very_same_weights(
    tiny: Tiny, samples: list[TrainingSample], tmp_path: Path, uninterrupted: str
) -> None:
    random = np.random.default_rng(0)
    work = child(tiny, samples, tmp_path, save_every=1)
    resumed, kills = until_done(work, lambda kills: random.uniform(0.05, 0.3) + 0.1 * kills)
    assert resumed == uninterrupted
    assert kills >= 1


@pytest.mark.parametrize(
    ("owner", "name", "calls"), [(checkpoints, "save_file", 2), (torch, "save", 2), (checkpoints, "_fsync", 5)]
)
def test_killed_in_the_middle_of_a_save_it_goes_on_from_the_state_before(
    tiny: Tiny,
    samples: list[TrainingSample],
    tmp_path: Path,
    uninterrupted: str,
    owner: Any,
    name: str,
    calls: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, real = child(tiny, samples, tmp_path, save_every=3), getattr(owner, name)
    left = list(range(calls))

    def fatal(*args: Any, **kwargs: Any) -> Any:
        left.pop()
        return real(*args, **kwargs) if left else commit_suicide()

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fatal)
        assert in_child(work) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "unfinished"]
    assert in_child(work) == uninterrupted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sample: {"weights": sample.weights[:-1]}, "weights or logprobs are of another length"),
        (lambda sample: {"images": sample.images[:-1]}, "one image for each placeholder"),
        (lambda sample: {"input_ids": sample.input_ids + 1_000_000}, "beyond the vocabulary of"),
        (lambda sample: {"train_mask": np.ones_like(sample.train_mask)}, "trains on its first token"),
    ],
)
def test_a_sample_that_cannot_be_trained_on_is_refused_before_the_first_step(
    tiny: Tiny, samples: list[TrainingSample], tmp_path: Path, change: Callable[[TrainingSample], Any], message: str
) -> None:
    """Also the last of many, which a batch of four would meet only in the second step."""
    policy, notes = tiny.fresh(), Notes()
    before = fingerprint(policy.trainable)
    spoilt = [*samples, replace(samples[0], **change(samples[0]))]
    if "input_ids" in change(samples[0]):
        spoilt[-1] = replace(spoilt[-1], images=(), image_grids=())
    with pytest.raises(PackingError, match=message):
        train_sft(policy, spoilt, CONFIG, steps=4, seed=1, states=tmp_path, report=notes)
    assert not notes.curve
    assert fingerprint(policy.trainable) == before
