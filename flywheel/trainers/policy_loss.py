"""The loss of one micro-batch under a row of the table: policy term, KL and entropy, and what is logged of them.

Legend: B rows (trajectories, or steps), T tokens. Masks are bool, True on trained tokens.
"""

import torch
from torch import Tensor

from flywheel.errors import ConfigError
from flywheel.sections import KlEstimator
from flywheel.trainers.aggregation import Denominators, aggregate, masked_mean
from flywheel.trainers.algorithms import Algorithm
from flywheel.trainers.divergences import kl_estimate
from flywheel.trainers.losses import TokenLoss


def policy_loss(
    algorithm: Algorithm,
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float | None = None,
    clip_high: float | None = None,
    ref_logp_BT: Tensor | None = None,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    entropy_BT: Tensor | None = None,
    entropy: float = 0.0,
    weight_BT: Tensor | None = None,
    denominators: Denominators | None = None,
    row_tokens_B: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of one micro-batch: its share of the update's loss, when `denominators` count the whole update.

        L = agg(w * l(logp, old, A)) + kl agg(KL(policy || ref)) - entropy agg(H)

    With the same `denominators` the losses, and the gradients, of micro-batches add up to those of the whole, as long
    as no row is cut. What lies outside the mask is never read. Computed in float32 at least.

    Args:
        logp_BT: logprobs (nats) under the trained policy; carries gradient.
        old_logp_BT: of the same tokens under the sampling policy; no gradient.
        advantage: one a row (B,), or one a token (B, T).
        mask_BT: bool, True on trained tokens.
        clip_low, clip_high: in place of the algorithm's own.
        ref_logp_BT: under the reference; needed when `kl` is not 0.
        entropy_BT: of each token's distribution; needed when `entropy` is not 0.
        weight_BT: correction weights on the policy term, see `corrections.py`.
        denominators: counts of the whole update before rejection; None counts this batch alone.
        row_tokens_B: trained tokens of each row before rejection; None counts `mask_BT`.
    Returns: (scalar loss, metrics). Metrics are means over this micro-batch's trained tokens, to be weighted by
        `tokens` when several are joined: `loss`, `clip_fraction`, `cap_fraction`, `approx_kl` and `mean_abs_dlogp` (k3
        and mean distance to the sampling policy), `ratio_mean`, `mean_abs_advantage`, and `ref_kl` and `entropy` where
        they are computed.
    Raises: ValueError if shapes disagree; ConfigError for clip bounds an algorithm does not have, or a KL or entropy
        term without its input; TrainingError if nothing is trained and no denominators are given.
    """
    low, high = _bounds(algorithm, clip_low, clip_high)
    if kl and ref_logp_BT is None:
        raise ConfigError("The KL term (rl.kl) needs the logprobs of the reference policy.")
    if entropy and entropy_BT is None:
        raise ConfigError("The entropy bonus (rl.entropy) needs the entropy of each token.")
    advantage_BT = advantage[:, None].expand_as(logp_BT) if advantage.ndim == 1 else advantage
    shapes = {tuple(x.shape) for x in (logp_BT, old_logp_BT, advantage_BT, mask_BT)}
    if len(shapes) != 1:
        raise ValueError(f"Logprobs, advantages and mask must have one shape, not {sorted(shapes)}.")
    logp_BT, old_logp_BT, clean_BT = (_clean(x, mask_BT) for x in (logp_BT, old_logp_BT.detach(), advantage_BT))
    terms = algorithm.loss(logp_BT, old_logp_BT, clean_BT, mask_BT, low, high)
    policy_BT = terms.loss_BT if weight_BT is None else terms.loss_BT * weight_BT

    def reduce(value_BT: Tensor) -> Tensor:
        return aggregate(value_BT, mask_BT, algorithm.aggregation, denominators, row_tokens_B=row_tokens_B)

    loss = reduce(policy_BT)
    means = _metrics(terms, logp_BT, old_logp_BT, clean_BT)
    if kl and ref_logp_BT is not None:
        kl_BT = kl_estimate(logp_BT, _clean(ref_logp_BT.detach(), mask_BT), kl_estimator)
        loss = loss + kl * reduce(kl_BT)
        means["ref_kl"] = kl_BT
    if entropy_BT is not None:
        means["entropy"] = entropy_BT
        loss = loss - entropy * reduce(entropy_BT) if entropy else loss
    return loss, _to_floats(loss, means, mask_BT)


def _clean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """At least float32 (bfloat16 cannot count to 300); 0 outside the mask, as nan * 0 is nan in backward passes too."""
    return torch.where(mask_BT, value_BT, 0.0).to(torch.promote_types(value_BT.dtype, torch.float32))


def _bounds(chosen: Algorithm, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    for key, given, own in (("clip_low", low, chosen.clip_low), ("clip_high", high, chosen.clip_high)):
        if given is not None and own is None:
            raise ConfigError(f"Algorithm {chosen.name!r} has no clip bound; leave rl.{key} empty.")
        if given is not None and given < 0:
            raise ConfigError(f"rl.{key} is {given}, but a clip bound cannot be negative.")
    return chosen.clip_low if low is None else low, chosen.clip_high if high is None else high


def _metrics(terms: TokenLoss, logp_BT: Tensor, old_logp_BT: Tensor, advantage_BT: Tensor) -> dict[str, Tensor]:
    return {
        "clip_fraction": terms.clipped_BT,
        "cap_fraction": terms.capped_BT,
        "approx_kl": kl_estimate(old_logp_BT, logp_BT.detach(), "k3", limit=None),
        "mean_abs_dlogp": (logp_BT.detach() - old_logp_BT).abs(),
        "ratio_mean": terms.ratio_BT,
        "mean_abs_advantage": advantage_BT.abs(),
    }


def _to_floats(loss: Tensor, means: dict[str, Tensor], mask_BT: Tensor) -> dict[str, float]:
    """One transfer for all figures, so that a step waits for the device once."""
    values = [masked_mean(x_BT.detach().to(loss.dtype), mask_BT) for x_BT in means.values()]
    figures = torch.stack([loss.detach(), mask_BT.sum().to(loss.dtype), *values]).tolist()
    return dict(zip(["loss", "tokens", *means], figures, strict=True))
