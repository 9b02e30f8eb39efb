"""Denominators that survive chunking, rejection and padding."""

from typing import get_args

import pytest
import torch

from flywheel.errors import ConfigError, TrainingError
from flywheel.trainers.aggregation import Aggregation, Denominators, aggregate, masked_mean, whiten

MODES = get_args(Aggregation)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 5, generator=generator) > 0.4
    mask[2] = False
    return torch.randn(6, 5, generator=generator, dtype=torch.float64), mask


@pytest.mark.parametrize("mode", MODES)
def test_chunks_add_up_to_the_whole(mode: Aggregation) -> None:
    value, mask = batch()
    counts = Denominators.of(mask)
    parts = [aggregate(value[rows], mask[rows], mode, counts) for rows in (slice(0, 1), slice(1, 4), slice(4, 6))]
    torch.testing.assert_close(sum(parts), aggregate(value, mask, mode), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_averaging_over_workers_is_undone(mode: Aggregation) -> None:
    value, mask = batch()
    counts = Denominators.of(mask, world_size=2)
    workers = [aggregate(value[rows], mask[rows], mode, counts) for rows in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(sum(workers) / 2, aggregate(value, mask, mode), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_padding_is_never_read(mode: Aggregation) -> None:
    value, mask = batch()
    value.requires_grad_()
    dirty = torch.where(mask, value, float("nan"))
    loss = aggregate(dirty, mask, mode)
    torch.testing.assert_close(loss, aggregate(value, mask, mode))
    assert torch.isfinite(torch.autograd.grad(loss, value)[0]).all()


@pytest.mark.parametrize("mode", MODES)
def test_rejection_does_not_inflate_what_is_left(mode: Aggregation) -> None:
    value, mask = batch()
    value.requires_grad_()
    kept = mask.clone()
    kept[0, mask[0].nonzero()[0]] = False
    counts, row_tokens = Denominators.of(mask), mask.sum(-1)
    before = torch.autograd.grad(aggregate(value, mask, mode, counts, row_tokens_B=row_tokens), value)[0]
    after = torch.autograd.grad(aggregate(value, kept, mode, counts, row_tokens_B=row_tokens), value)[0]
    torch.testing.assert_close(after, before * kept)


def test_an_empty_micro_batch_gives_zero_with_a_gradient() -> None:
    value, mask = batch()
    value.requires_grad_()
    loss = aggregate(value, torch.zeros_like(mask), "token-mean", Denominators.of(mask))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, value)[0].any()


def test_an_empty_update_is_refused() -> None:
    value, mask = batch()
    with pytest.raises(TrainingError, match="no trained token"):
        aggregate(value, torch.zeros_like(mask), "token-mean")


def test_an_unknown_mode_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="token-mean"):
        aggregate(*batch(), "mean-of-means")  # type: ignore[arg-type]


def test_whitening_rows_by_their_counts_is_whitening_their_tokens() -> None:
    value, mask = batch()
    rows = value[:, 0]
    by_count = whiten(rows, mask.sum(-1))
    by_token = whiten(rows[:, None].expand_as(value), mask)
    torch.testing.assert_close(by_count[:, None].expand_as(value)[mask], by_token[mask])
    assert abs(float(masked_mean(by_token, mask))) < 1e-9


def test_whitening_one_token_is_refused() -> None:
    with pytest.raises(TrainingError, match="two trained tokens"):
        whiten(torch.ones(1, 3), torch.tensor([[True, False, False]]))
