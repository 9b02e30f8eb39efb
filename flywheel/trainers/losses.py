"""Policy losses, one value a token; `aggregation.aggregate` makes one number of them.

Every policy loss has the same shape, so that a row of the table in `algorithms.py` can name it:
(logp_BT, old_logp_BT, advantage_BT, mask_BT, clip_low, clip_high) -> TokenLoss. A variant is a parameter: dual clip,
clip-higher, two-sided clip, token or sequence ratio are all `clip_loss`.

Legend: B rows, T tokens. `logp_BT` is under the trained policy and carries gradient; `old_logp_BT` is under the policy
that sampled. Ratios are exp(logp - old), their logarithm clamped to +-20.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flywheel.trainers.aggregation import masked_mean

LOG_RATIO_LIMIT = 20.0
SEQUENCE_LOG_RATIO_LIMIT = 10.0


class TokenLoss(NamedTuple):
    """A loss a token, the ratio it used (no gradient), where the trust region bound, where an outer cap did."""

    loss_BT: Tensor
    ratio_BT: Tensor
    clipped_BT: Tensor
    capped_BT: Tensor


def token_ratio(logp_BT: Tensor, old_logp_BT: Tensor) -> Tensor:
    """exp(logp - old) with its exponent clamped to +-20."""
    return (logp_BT - old_logp_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """GSPO's ratio in its token form: the row's geometric mean in value, each token's own gradient.

        log s_b = sum((logp - old) m) / max(sum m, 1);   s_bt = exp(logp - sg(logp) + sg(log s_b))

    The row must be whole: a row cut into chunks has no geometric mean. Source: arXiv:2507.18071, section 4.3.
    """
    difference_BT = torch.where(mask_BT, logp_BT - old_logp_BT, 0.0).detach()
    log_ratio_B = difference_BT.sum(-1) / mask_BT.sum(-1).clamp(min=1)
    return (logp_BT - logp_BT.detach() + log_ratio_B[:, None]).clamp(max=SEQUENCE_LOG_RATIO_LIMIT).exp()


def clip_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    low: float,
    high: float,
    *,
    level: Literal["token", "sequence"] = "token",
    dual: float | None = None,
    cap: float | None = None,
) -> TokenLoss:
    """PPO's clipped surrogate; with `level="sequence"` GSPO, and GSPO-token where advantages differ within a row.

        L = max(-A r, -A clip(r, 1 - low, 1 + high));  where A < 0 at most -A dual

    Sources: PPO arXiv:1707.06347, dual clip arXiv:1912.09729, clip-higher (DAPO) arXiv:2503.14476, GSPO
    arXiv:2507.18071, the cap (two-sided clip, INTELLECT-2) arXiv:2505.07291.

    Args:
        low, high: bounds of the ratio. GSPO's limit a per-token geometric mean (3e-4, 4e-4): PPO's 0.2 would almost
            never bind there.
        dual: bound on the loss of a token with negative advantage, above 1; None switches it off.
        cap: upper bound of the unclipped ratio, for either sign; None switches it off.
    Raises: ValueError if `dual` is not above 1.
    """
    if dual is not None and dual <= 1:
        raise ValueError(f"The dual clip bounds ratios above 1, so it must exceed 1, not {dual}.")
    whole = level == "sequence"
    ratio_BT = sequence_ratio(logp_BT, old_logp_BT, mask_BT) if whole else token_ratio(logp_BT, old_logp_BT)
    free_BT = -advantage_BT * (ratio_BT if cap is None else ratio_BT.clamp(max=cap))
    bound_BT = -advantage_BT * ratio_BT.clamp(1 - low, 1 + high)
    loss_BT = torch.maximum(free_BT, bound_BT)
    capped_BT = torch.zeros_like(mask_BT) if cap is None else ratio_BT > cap
    if dual is not None:
        ceiling_BT = -advantage_BT * dual
        capped_BT = capped_BT | ((advantage_BT < 0) & (loss_BT > ceiling_BT))
        loss_BT = torch.where(advantage_BT < 0, torch.minimum(ceiling_BT, loss_BT), loss_BT)
    return TokenLoss(loss_BT, ratio_BT.detach(), bound_BT > free_BT, capped_BT)


def weighted_logp_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    low: float | None,
    high: float | None,
    *,
    ratio: bool = True,
) -> TokenLoss:
    """REINFORCE on each token: L = -w A logp, where clipping bounds the weight and never stops the gradient.

    With `ratio` w = sg(clip(r, 1 - low, 1 + high)) (CISPO); without, w = 1 (GPG). A bound of None is absent.
    Sources: CISPO arXiv:2506.13585, GPG arXiv:2504.02546.
    """
    ratio_BT = token_ratio(logp_BT, old_logp_BT).detach()
    weight_BT = ratio_BT if ratio else torch.ones_like(ratio_BT)
    if ratio and (low is not None or high is not None):
        weight_BT = weight_BT.clamp(None if low is None else 1 - low, None if high is None else 1 + high)
    clipped_BT = (weight_BT != ratio_BT) if ratio else torch.zeros_like(mask_BT)
    return TokenLoss(-weight_BT * advantage_BT * logp_BT, ratio_BT, clipped_BT, torch.zeros_like(mask_BT))


def sapo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    low: float | None = None,
    high: float | None = None,
    *,
    positive: float = 1.0,
    negative: float = 1.05,
) -> TokenLoss:
    """Soft adaptive gate in the place of a clip: L = -A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A.

    It has no bounds; `low` and `high` are there for the common shape only. Source: arXiv:2511.20347.
    """
    ratio_BT = token_ratio(logp_BT, old_logp_BT)
    tau_BT = torch.where(advantage_BT > 0, torch.full_like(ratio_BT, positive), negative)
    gate_BT = torch.sigmoid(tau_BT * (ratio_BT - 1)) * (4 / tau_BT)
    never_BT = torch.zeros_like(mask_BT)
    return TokenLoss(-gate_BT * advantage_BT, ratio_BT.detach(), never_BT, never_BT)


def gmpo_loss(
    logp_BT: Tensor, old_logp_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor, low: float, high: float
) -> TokenLoss:
    """Geometric-mean policy optimisation: clip each token's log ratio, then take the row's geometric mean.

        L_b = -mean_t(A) exp(mean_t sgn(A) min(sgn(A) d, sgn(A) clip(d, -low, high))),   d = logp - old

    Bounds are on the log ratio. The row's loss stands on each of its tokens: aggregate by seq-mean-token-mean. Source:
    arXiv:2507.20673.
    """
    d_BT = logp_BT - old_logp_BT
    bounded_BT = d_BT.clamp(-low, high)
    sign_BT = torch.sign(advantage_BT)
    chosen_BT = sign_BT * torch.minimum(sign_BT * d_BT, sign_BT * bounded_BT)
    ratio_B = masked_mean(chosen_BT, mask_BT, -1).exp()
    loss_B = -masked_mean(advantage_BT, mask_BT, -1) * ratio_B
    ratio_BT = d_BT.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    never_BT = torch.zeros_like(mask_BT)
    return TokenLoss(loss_B[:, None].expand_as(logp_BT), ratio_BT, bounded_BT != d_BT, never_BT)


def trust_region_keep(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    low: float,
    high: float,
    *,
    measure: Literal["tv", "kl"] = "tv",
    two_sided: bool = False,
) -> Tensor:
    """bool (B, T), False where the token's probability has moved too far already in the direction its advantage pushes.

    Measured on the two-outcome distribution {this token, any other}: `tv` by p - p_old, `kl` by KL(old || new). With
    `two_sided` any movement counts, whatever the advantage. Source: DPPO arXiv:2602.04879.
    """
    p_BT, old_BT = logp_BT.detach().exp(), old_logp_BT.exp()
    if measure == "tv":
        up_BT, down_BT = p_BT - old_BT > high, p_BT - old_BT < -low
    else:
        other_BT = torch.log((1 - old_BT + 1e-8) / (1 - p_BT + 1e-8))
        kl_BT = old_BT * (old_logp_BT - logp_BT.detach()) + (1 - old_BT) * other_BT
        up_BT, down_BT = (kl_BT > high) & (p_BT > old_BT), (kl_BT > low) & (p_BT < old_BT)
    return ~(up_BT | down_BT) if two_sided else ~torch.where(advantage_BT > 0, up_BT, down_BT)


def dppo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    low: float,
    high: float,
    *,
    measure: Literal["tv", "kl"] = "tv",
    two_sided: bool = False,
    cap: float = 20.0,
    surrogate: Literal["logp", "ratio"] = "logp",
) -> TokenLoss:
    """DPPO: the trust region bounds probabilities, not ratios; tokens outside of it are dropped.

        L = -keep A sg(min(r, cap)) logp,  or with `surrogate="ratio"`  -keep A r  (equal gradient below the cap)

    Sources: arXiv:2602.04879; the ratio form is prime-rl's.
    """
    keep_BT = trust_region_keep(logp_BT, old_logp_BT, advantage_BT, low, high, measure=measure, two_sided=two_sided)
    ratio_BT = token_ratio(logp_BT, old_logp_BT)
    loss_BT = -advantage_BT * (ratio_BT if surrogate == "ratio" else ratio_BT.detach().clamp(max=cap) * logp_BT)
    capped_BT = (ratio_BT > cap) & keep_BT
    return TokenLoss(torch.where(keep_BT, loss_BT, 0.0), ratio_BT.detach(), ~keep_BT, capped_BT)


def value_loss(
    value_BT: Tensor, return_BT: Tensor, old_value_BT: Tensor, clip: float | None = 0.5
) -> tuple[Tensor, Tensor]:
    """PPO's clipped value loss: .5 max((v - R)^2, (clip(v, v_old +- clip) - R)^2). Source: arXiv:1707.06347.

    Returns: (loss_BT, clipped_BT). `clip=None` leaves the plain squared error.
    """
    free_BT = (value_BT - return_BT).square()
    if clip is None:
        return 0.5 * free_BT, torch.zeros_like(free_BT, dtype=torch.bool)
    near_BT = torch.minimum(torch.maximum(value_BT, old_value_BT - clip), old_value_BT + clip)
    bound_BT = (near_BT - return_BT).square()
    return 0.5 * torch.maximum(free_BT, bound_BT), bound_BT > free_BT
