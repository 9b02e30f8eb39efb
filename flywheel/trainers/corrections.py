"""Repairing the mismatch between the engine that sampled and the trainer that scores.

w = exp(old_logp - rollout_logp): `old` is the trainer's logprob of the sampled token before the update, `rollout` the
engine's when it sampled. Weights and masks carry no gradient: they change the measure, not the objective. A rejected
token leaves the sum but not the denominators; pass `aggregate` the counts of the mask before rejection.

Legend: B rows, T tokens; masks are bool, True on trained tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from flywheel.errors import ConfigError
from flywheel.sections import CorrectionName
from flywheel.trainers.aggregation import masked_mean

LOG_RATIO_LIMIT = 20.0


def _log_ratio(old_logp_BT: Tensor, rollout_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, old_logp_BT - rollout_logp_BT, 0.0).detach()


def importance_weights(
    old_logp_BT: Tensor,
    rollout_logp_BT: Tensor,
    mask_BT: Tensor,
    *,
    level: Literal["token", "sequence"] = "token",
    low: float = 0.0,
    high: float = 2.0,
    outside: Literal["clamp", "zero"] = "clamp",
    normalise: bool = False,
) -> Tensor:
    """Truncated importance weights (TIS), or IcePop with `outside="zero"`.

        token: w_bt = exp(d_bt);   sequence: w_b = exp(sum_t d_bt) on each of the row's tokens;   d = old - rollout
        clamp: min(max(w, low), high);   zero: w where low <= w <= high, else 0

    Sources: TIS fengyao.notion.site/off-policy-rl; IcePop ringtech.notion.site/icepop.

    Args:
        normalise: divide by the mean weight (over tokens, or over rows for sequence weights).
    Returns: weight_BT, 0 outside the mask, no gradient.
    """
    log_BT = _log_ratio(old_logp_BT, rollout_logp_BT, mask_BT)
    if level == "sequence":
        log_BT = log_BT.sum(-1, keepdim=True).expand_as(log_BT)
    raw_BT = log_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    inside_BT = (raw_BT >= low) & (raw_BT <= high)
    weight_BT = raw_BT.clamp(low, high) if outside == "clamp" else torch.where(inside_BT, raw_BT, 0.0)
    weight_BT = torch.where(mask_BT, weight_BT, 0.0)
    if normalise:
        mean = mean_weight(weight_BT, mask_BT, level=level)
        weight_BT = weight_BT / mean if mean > 0 else weight_BT
    return weight_BT


def mean_weight(weight_BT: Tensor, mask_BT: Tensor, *, level: Literal["token", "sequence"] = "token") -> float:
    """Mean over trained tokens, or over rows that have any."""
    if level == "token":
        return float(masked_mean(weight_BT, mask_BT))
    return float(masked_mean(masked_mean(weight_BT, mask_BT, -1), mask_BT.any(-1)))


def rejection_mask(
    old_logp_BT: Tensor,
    rollout_logp_BT: Tensor,
    mask_BT: Tensor,
    *,
    level: Literal["token", "seq_sum", "seq_mean", "seq_max"] = "token",
    estimator: Literal["k1", "k2", "k3"] = "k3",
    low: float | None = None,
    high: float,
) -> Tensor:
    """mask_BT without the tokens (or the whole rows) whose divergence is out of bounds.

        k1 -d within [log low, log high];   k2 d^2 / 2 <= high;   k3 e^d - 1 - d <= high;   d = old - rollout

    Combine rules with `&`. For k1 the bounds are ratios; `low` defaults to 1 / high. Source: verl's rollout correction.
    """
    d_BT = _log_ratio(old_logp_BT, rollout_logp_BT, mask_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    value_BT = {"k1": -d_BT, "k2": 0.5 * d_BT.square(), "k3": d_BT.exp() - 1 - d_BT}[estimator]
    value_BT = torch.where(mask_BT, value_BT, 0.0)
    if level == "seq_max":
        value_BT = value_BT.masked_fill(~mask_BT, -math.inf).amax(-1, keepdim=True)
    elif level != "token":
        value_BT = value_BT.sum(-1, keepdim=True)
        value_BT = value_BT / mask_BT.sum(-1, keepdim=True).clamp(min=1) if level == "seq_mean" else value_BT
    if estimator == "k1":
        keep_BT = (value_BT >= math.log(low or 1 / high)) & (value_BT <= math.log(high))
    else:
        keep_BT = value_BT <= high
    return mask_BT & keep_BT


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction by name: how it weighs or rejects, and its usual bounds on a ratio, old to rollout."""

    low: float
    high: float
    weigh: Callable[..., Tensor] | None = None
    reject: Callable[..., Tensor] | None = None


CORRECTIONS: dict[CorrectionName, Correction] = {
    "none": Correction(0.0, math.inf),
    "token_tis": Correction(0.0, 2.0, weigh=importance_weights),
    "icepop": Correction(0.5, 5.0, weigh=partial(importance_weights, outside="zero")),
    "sequence_tis": Correction(0.0, 2.0, weigh=partial(importance_weights, level="sequence")),
    # The geometric mean over a row; over tokens of the same sign it leaves 1 by their mean |dlogp|.
    "sequence_rejection": Correction(0.99, 1.01, reject=partial(rejection_mask, level="seq_mean", estimator="k1")),
    "token_rejection": Correction(0.5, 2.0, reject=partial(rejection_mask, level="token", estimator="k1")),
}


def correct(
    name: CorrectionName,
    old_logp_BT: Tensor,
    rollout_logp_BT: Tensor,
    mask_BT: Tensor,
    *,
    low: float | None = None,
    high: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(weight_BT, kept_BT) of a named correction: weights on the policy term, and what is not rejected.

    Args:
        low, high: bounds of the ratio, in place of the correction's own.
    Raises: ConfigError if the bounds leave no room.
    """
    chosen = CORRECTIONS[name]
    low, high = chosen.low if low is None else low, chosen.high if high is None else high
    if not 0 <= low < high or (chosen.reject and low == 0):
        raise ConfigError(
            f"The bounds of the correction {name!r} are {low} and {high}; give rl.correction_low below "
            "rl.correction_high, and above 0 where it rejects."
        )
    weight_BT, kept_BT = torch.ones_like(old_logp_BT), mask_BT
    if chosen.weigh:
        weight_BT = chosen.weigh(old_logp_BT, rollout_logp_BT, mask_BT, low=low, high=high)
    if chosen.reject:
        kept_BT = chosen.reject(old_logp_BT, rollout_logp_BT, mask_BT, low=low, high=high)
    return weight_BT, kept_BT


def off_policy_mask(
    logp_BT: Tensor, old_logp_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor, threshold: float
) -> Tensor:
    """mask_BT without tokens of negative advantage in rows that have drifted: mean_t(old - logp) > threshold.

    Source: off-policy sequence masking, DeepSeek-V3.2 arXiv:2512.02556.
    """
    drift_B = masked_mean((old_logp_BT - logp_BT).detach(), mask_BT, -1)
    return mask_BT & ~((advantage_BT < 0) & (drift_B > threshold)[:, None])


def top_quantile_mask(value_BT: Tensor, mask_BT: Tensor, quantile: float) -> Tensor:
    """mask_BT with only what lies at or above the quantile of the masked values.

    On token entropies 0.8 keeps the fifth that decides (arXiv:2506.01939); on step entropies 0.2 is DART's selection.
    """
    return mask_BT & (value_BT >= torch.quantile(value_BT[mask_BT].float(), quantile))


def weight_metrics(weight_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Mean, deviation, extremes and effective sample size (a share, 1 is best) of applied weights."""
    mean = masked_mean(weight_BT, mask_BT)
    square = masked_mean(weight_BT.square(), mask_BT)
    inside = weight_BT[mask_BT]
    return {
        "mean": float(mean),
        "std": float((square - mean.square()).clamp(min=0).sqrt()),
        "min": float(inside.min()),
        "max": float(inside.max()),
        "effective_sample_size": float(mean.square() / square) if square > 0 else 0.0,
    }


def mismatch_metrics(old_logp_BT: Tensor, rollout_logp_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """How far engine and trainer disagree; per row figures count rows with trained tokens only.

    `mean_abs_dlogp` is the guard's figure (warn above .05, stop above .1). `kl` and `k3_kl` estimate
    KL(rollout || trainer). `chi2_*` is E[w^2] - 1, the variance of the weights. `*ppl*` compare per row perplexities.
    """
    d_BT = _log_ratio(old_logp_BT, rollout_logp_BT, mask_BT)
    rows_B = mask_BT.any(-1)
    train_R, rollout_R = (-masked_mean(x_BT, mask_BT, -1)[rows_B] for x_BT in (old_logp_BT, rollout_logp_BT))
    gap_R = train_R - rollout_R
    bounded_BT = d_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    sums_R = d_BT.sum(-1)[rows_B].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    figures = {
        "mean_abs_dlogp": masked_mean(d_BT.abs(), mask_BT),
        "kl": masked_mean(-d_BT, mask_BT),
        "k3_kl": masked_mean(d_BT.exp() - d_BT - 1, mask_BT),
        "training_ppl": train_R.exp().mean(),
        "training_log_ppl": train_R.mean(),
        "rollout_ppl": rollout_R.exp().mean(),
        "rollout_log_ppl": rollout_R.mean(),
        "log_ppl_diff": gap_R.mean(),
        "log_ppl_abs_diff": gap_R.abs().mean(),
        "log_ppl_diff_max": gap_R.max(),
        "log_ppl_diff_min": gap_R.min(),
        "ppl_ratio": gap_R.exp().mean(),
        "chi2_token": masked_mean((2 * bounded_BT).exp(), mask_BT) - 1,
        "chi2_seq": (2 * sums_R).exp().mean() - 1,
    }
    return {name: float(figure) for name, figure in figures.items()}
