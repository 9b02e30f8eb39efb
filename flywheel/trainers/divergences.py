"""KL estimators and entropy: how far the policy is from another one, and how undecided it is.

Legend: B rows, T tokens, V vocabulary. Logprobs and entropies in nats.
"""

from typing import get_args

import torch
from torch import Tensor

from flywheel.errors import ConfigError
from flywheel.sections import KlEstimator


def kl_estimate(
    logp_BT: Tensor, ref_logp_BT: Tensor, estimator: KlEstimator = "k3", *, limit: float | None = 10.0
) -> Tensor:
    """Estimate KL(policy || reference) on each sampled token; with d = logp - ref:

        k1  d                 unbiased, may be negative; as a loss its expected gradient is 0
        abs |d|
        k2  d^2 / 2           biased value, right gradient on average
        k3  e^-d + d - 1      unbiased, never negative
        k1+, k3+              the value of k1 or k3 with the gradient of k2 (straight through)

    Sources: joschu.net/blog/kl-approx.html; on their gradients arXiv:2512.21852.

    Args:
        limit: k3 is clamped to [-limit, limit] and its d to [-20, 20]; None clamps nothing.
    Returns: kl_BT. Raises: ConfigError for an unknown estimator.
    """
    if estimator not in get_args(KlEstimator):
        raise ConfigError(f"Unknown KL estimator {estimator!r}; choose one of {', '.join(get_args(KlEstimator))}.")
    d_BT = logp_BT - ref_logp_BT
    if estimator.endswith("+"):
        half_square_BT = 0.5 * d_BT.square()
        value_BT = kl_estimate(logp_BT, ref_logp_BT, "k1" if estimator == "k1+" else "k3", limit=limit)
        return half_square_BT + (value_BT - half_square_BT).detach()
    if estimator == "k1":
        return d_BT
    if estimator == "abs":
        return d_BT.abs()
    if estimator == "k2":
        return 0.5 * d_BT.square()
    if limit is None:
        return torch.exp(-d_BT) + d_BT - 1
    d_BT = d_BT.clamp(-20.0, 20.0)
    return (torch.exp(-d_BT) + d_BT - 1).clamp(-limit, limit)


def reward_with_kl(reward_BT: Tensor, old_logp_BT: Tensor, ref_logp_BT: Tensor, coefficient: float) -> Tensor:
    """reward_BT less the k1 penalty of each token, as PPO and REINFORCE++ put it into the reward."""
    return reward_BT - coefficient * (old_logp_BT - ref_logp_BT)


def adapt_kl_coefficient(coefficient: float, kl: float, *, target: float, samples: int, horizon: int) -> float:
    """Move the coefficient towards the target KL by at most 20% per `horizon` samples. Source: arXiv:1909.08593."""
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * samples / horizon)


def entropy(logits_BTV: Tensor) -> Tensor:
    """Entropy of each token's distribution, logsumexp(z) - sum(softmax(z) z). Returns entropy_BT."""
    return logits_BTV.logsumexp(-1) - (logits_BTV.softmax(-1) * logits_BTV).sum(-1)
