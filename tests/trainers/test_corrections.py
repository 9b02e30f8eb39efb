"""Weights and masks carry no gradient and never touch padding."""

import math

import pytest
import torch

from flywheel.trainers.corrections import (
    importance_weights,
    mismatch_metrics,
    off_policy_mask,
    rejection_mask,
    top_quantile_mask,
    weight_metrics,
)

OLD = torch.tensor([[-1.0, -1.0, math.nan], [-1.0, -2.0, -1.0]])
ROLLOUT = torch.tensor([[-1.0, -2.0, -1.0], [-1.0, -1.0, -1.0]])
MASK = torch.tensor([[True, True, False], [True, True, True]])


def test_token_weights_are_truncated_or_zeroed() -> None:
    e = math.e
    torch.testing.assert_close(
        importance_weights(OLD, ROLLOUT, MASK), torch.tensor([[1, 2, 0], [1, 1 / e, 1]]), rtol=1e-6, atol=0
    )
    popped = importance_weights(OLD, ROLLOUT, MASK, low=0.5, high=2.0, outside="zero")
    assert popped.tolist() == [[1, 0, 0], [1, 0, 1]]


def test_sequence_weights_are_products() -> None:
    weight = importance_weights(OLD, ROLLOUT, MASK, level="sequence", high=10)
    torch.testing.assert_close(weight[0, :2], torch.full((2,), math.e))
    torch.testing.assert_close(weight[1], torch.full((3,), 1 / math.e))


def test_normalised_weights_have_mean_one() -> None:
    weight = importance_weights(OLD, ROLLOUT, MASK, normalise=True)
    assert float(weight[MASK].mean()) == pytest.approx(1)


def test_weights_carry_no_gradient() -> None:
    old = OLD.clone().requires_grad_()
    assert not importance_weights(old, ROLLOUT, MASK).requires_grad


def test_rejection_of_tokens_and_of_rows() -> None:
    by_token = rejection_mask(OLD, ROLLOUT, MASK, level="token", estimator="k1", high=2.0)
    assert by_token.tolist() == [[True, False, False], [True, False, True]]
    by_row = rejection_mask(OLD, ROLLOUT, MASK, level="seq_max", estimator="k2", high=0.4)
    assert not by_row.any()
    assert (rejection_mask(OLD, ROLLOUT, MASK, level="seq_mean", estimator="k3", high=9.0) == MASK).all()


def test_only_drifted_rows_of_negative_advantage_are_dropped() -> None:
    logp, old = torch.tensor([[-3.0, -3.0], [-3.0, -3.0]]), torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    advantage, mask = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.ones(2, 2).bool()
    assert off_policy_mask(logp, old, advantage, mask, 0.1).tolist() == [[True, True], [False, False]]
    assert off_policy_mask(old, old, advantage, mask, 0.1).all()


def test_the_top_of_the_masked_values_is_kept() -> None:
    value, mask = torch.tensor([[9.0, 1.0, 2.0, 3.0, 4.0, 5.0]]), torch.tensor([[False] + [True] * 5])
    assert top_quantile_mask(value, mask, 0.75).tolist() == [[False, False, False, False, True, True]]


def test_equal_engines_show_no_mismatch() -> None:
    old = torch.where(MASK, OLD, 0.0)
    figures = mismatch_metrics(old, old, MASK)
    assert figures["mean_abs_dlogp"] == figures["kl"] == figures["k3_kl"] == 0
    assert figures["chi2_token"] == pytest.approx(0, abs=1e-6)
    weights = weight_metrics(importance_weights(old, old, MASK), MASK)
    assert weights["effective_sample_size"] == pytest.approx(1, abs=1e-6)


def test_padding_does_not_reach_the_figures() -> None:
    assert all(math.isfinite(figure) for figure in mismatch_metrics(OLD, ROLLOUT, MASK).values())
    assert mismatch_metrics(OLD, ROLLOUT, MASK)["mean_abs_dlogp"] == pytest.approx(2 / 5)
