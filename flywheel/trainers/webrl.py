"""WebRL's off-policy actor loss and the critic's reading that feeds it.

Keeps: the two-headed binary critic, the sign advantage (1, -0.6), the adaptive beta, the smooth L1 regression, and that
only steps of non-negative advantage contribute. Drops: the added SFT term (off in the reference's runs). Source:
arXiv:2411.02337 and its code, which regresses the token-normalised log ratio of the positive steps.

Legend: B steps, T tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

STEP_COST = 0.05
NEGATIVE = -0.6


class WebrlLoss(NamedTuple):
    """The scalar loss, and what is logged of it."""

    loss: Tensor
    sign_B: Tensor
    beta_B: Tensor
    log_ratio_B: Tensor


def critic_value(first_B2: Tensor, second_B2: Tensor) -> Tensor:
    """value_B in [0, 1]: the lower of two heads' probability of success, from logits (fail, succeed)."""
    return torch.minimum(first_B2.softmax(-1)[:, 1], second_B2.softmax(-1)[:, 1])


def webrl_advantage(value_B: Tensor, next_value_B: Tensor, reward_B: Tensor, mc_return_B: Tensor) -> Tensor:
    """One-step gain less the cost of a step, plus reward and Monte Carlo return, clamped to [-1, 1]."""
    return (next_value_B - value_B - STEP_COST + reward_B + mc_return_B).clamp(-1, 1)


def webrl_loss(
    logp_BT: Tensor,
    ref_logp_BT: Tensor,
    mask_BT: Tensor,
    advantage_B: Tensor,
    *,
    positive_tokens: float | None = None,
    rows: int | None = None,
) -> WebrlLoss:
    """Regress beta times the log ratio to the reference onto the sign of the advantage.

        x_b = (sum_t logp - sum_t ref) / tokens of the positive steps;   s_b = 1 if A_b >= 0 else -0.6
        beta_b = min(5 if the reference is sure enough (p_ref >= .8; < .9 for negatives) else 1, |s_b / x_b|)
        L = mean_b [A_b >= 0] smooth_l1(beta_b x_b, s_b) / beta_b

    Args:
        advantage_B: see `webrl_advantage`.
        positive_tokens, rows: counts of the whole optimiser step; None counts this batch alone.
    Returns: the loss is a mean over all rows; it is 0, with a zero gradient, if no step is positive.
    """
    tokens_B = mask_BT.sum(-1)
    logp_B, ref_B = (torch.where(mask_BT, x_BT, 0.0).sum(-1) for x_BT in (logp_BT, ref_logp_BT))
    positive_B = advantage_B >= 0
    sign_B = torch.where(positive_B, torch.ones_like(logp_B), NEGATIVE)
    positive = float(tokens_B[positive_B].sum()) if positive_tokens is None else positive_tokens
    log_ratio_B = (logp_B - ref_B) / max(positive, 1.0)
    ref_probability_B = (ref_B / tokens_B.clamp(min=1)).exp()
    sure_B = torch.where(positive_B, ref_probability_B >= 0.8, ref_probability_B < 0.9)
    beta_B = torch.minimum(torch.where(sure_B, 5.0, 1.0), (sign_B / log_ratio_B).abs()).detach()
    loss_B = smooth_l1_loss(beta_B * log_ratio_B, sign_B, reduction="none") / beta_B
    return WebrlLoss((loss_B * positive_B).sum() / (rows or len(loss_B)), sign_B, beta_B, log_ratio_B.detach())
