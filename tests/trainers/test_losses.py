"""Relations between losses, and their edges, that no golden figure states."""

import pytest
import torch

from flywheel.errors import ConfigError
from flywheel.trainers.distillation import distillation_loss, divergence
from flywheel.trainers.divergences import entropy, kl_estimate
from flywheel.trainers.losses import clip_loss, dppo_loss, value_loss, weighted_logp_loss
from flywheel.trainers.webrl import webrl_loss

EVERYTHING = torch.ones(1, 3).bool()


def row(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64, requires_grad=grad)


def test_the_clip_stops_the_gradient_only_where_the_step_has_been_made() -> None:
    logp, old = row(0.5, 0.5, -0.5, grad=True), row(0.0, 0.0, 0.0)
    terms = clip_loss(logp, old, row(1.0, -1.0, 1.0), EVERYTHING, 0.2, 0.2)
    gradient = torch.autograd.grad(terms.loss_BT.sum(), logp)[0]
    assert gradient[0, 0] == 0
    assert gradient[0, 1] > 0
    assert gradient[0, 2] < 0
    assert terms.clipped_BT.tolist() == [[True, False, False]]


def test_the_dual_clip_bounds_a_bad_token_of_huge_ratio() -> None:
    logp = row(3.0, 3.0, 0.0, grad=True)
    terms = clip_loss(logp, row(0, 0, 0), row(-1.0, 1.0, -1.0), EVERYTHING, 0.2, 0.2, dual=3.0)
    assert terms.loss_BT[0, 0] == 3
    assert terms.capped_BT.tolist() == [[True, False, False]]
    assert torch.autograd.grad(terms.loss_BT.sum(), logp)[0][0, 0] == 0
    with pytest.raises(ValueError, match="exceed 1"):
        clip_loss(logp, row(0, 0, 0), row(1, 1, 1), EVERYTHING, 0.2, 0.2, dual=1.0)


def test_extreme_logprobs_stay_finite() -> None:
    logp = row(-1000.0, 0.0, -50.0, grad=True)
    for level in ("token", "sequence"):
        terms = clip_loss(logp, row(0.0, -1000.0, -1.0), row(1, -1, 1), EVERYTHING, 0.2, 0.2, level=level)
        assert torch.isfinite(torch.autograd.grad(terms.loss_BT.sum(), logp)[0]).all()


def test_the_sequence_ratio_is_one_number_with_a_gradient_for_each_token() -> None:
    logp, old = row(-1.0, -2.0, -3.0, grad=True), row(-1.3, -2.0, -2.7)
    terms = clip_loss(logp, old, row(1, 1, 1), EVERYTHING, 3e-4, 4e-4, level="sequence")
    torch.testing.assert_close(terms.ratio_BT, torch.ones_like(logp))
    torch.testing.assert_close(torch.autograd.grad(terms.loss_BT.sum(), logp)[0], -torch.ones_like(logp))


def test_the_weight_form_has_the_gradient_of_the_ratio_form_below_the_cap() -> None:
    old, advantage = row(-1.0, -0.7, -2.0), row(1.0, -1.0, 0.5)
    gradients = []
    for surrogate in ("logp", "ratio"):
        logp = row(-1.1, -0.5, -1.9, grad=True)
        terms = dppo_loss(logp, old, advantage, EVERYTHING, 0.2, 0.2, surrogate=surrogate)
        gradients.append(torch.autograd.grad(terms.loss_BT.sum(), logp)[0])
    torch.testing.assert_close(*gradients)


def test_bounds_of_the_weight_may_be_absent() -> None:
    logp = row(2.0, -2.0, 0.0)
    free = weighted_logp_loss(logp, row(0, 0, 0), row(1, 1, 1), EVERYTHING, None, None)
    assert not free.clipped_BT.any()
    above = weighted_logp_loss(logp, row(0, 0, 0), row(1, 1, 1), EVERYTHING, None, 0.5)
    assert above.clipped_BT.tolist() == [[True, False, False]]


def test_the_value_clip_can_be_off() -> None:
    value, returns, old = row(2.0, 0.0, 1.0), row(0, 0, 0), row(0, 0, 0)
    assert value_loss(value, returns, old, None)[0].tolist() == [[2.0, 0.0, 0.5]]


def test_kl_estimators_agree_where_policies_do() -> None:
    for estimator in ("k1", "abs", "k2", "k3", "k1+", "k3+"):
        assert not kl_estimate(row(-1, -2, -3), row(-1, -2, -3), estimator).any()
    with pytest.raises(ConfigError, match="choose one of k1"):
        kl_estimate(row(0), row(0), "k4")  # type: ignore[arg-type]


def test_entropy_of_equal_logits_is_the_logarithm_of_their_number() -> None:
    torch.testing.assert_close(entropy(torch.zeros(1, 1, 8)), torch.full((1, 1), 8.0).log())


def test_distilling_from_oneself_costs_nothing() -> None:
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for alpha in (0.0, 0.5, 1.0):
        for k in (None, 4):
            torch.testing.assert_close(
                distillation_loss(logits, logits, alpha=alpha, k=k), torch.zeros(2, 3).double(), atol=1e-12, rtol=0
            )


def test_divergences_have_their_direction() -> None:
    student, teacher = (torch.tensor([p]).log() for p in ([0.5, 0.5], [0.9, 0.1]))
    assert divergence(student, teacher, 0.0) == pytest.approx(float((teacher.exp() * (teacher - student)).sum()))
    assert divergence(student, teacher, 1.0) == pytest.approx(float((student.exp() * (student - teacher)).sum()))


def test_webrl_learns_nothing_from_bad_steps_alone() -> None:
    logp = row(-1.0, -1.0, -1.0, grad=True)
    terms = webrl_loss(logp, row(-1.1, -1.2, -1.3), EVERYTHING, torch.tensor([-0.5], dtype=torch.float64))
    assert terms.loss == 0
    assert not torch.autograd.grad(terms.loss, logp)[0].any()
