"""From a value per token to one number, with denominators that survive chunking and rejection.

    token-mean               sum(x) / tokens
    token-sum                sum(x)
    seq-mean-token-mean      mean over rows of (a row's sum / the row's tokens)
    seq-mean-token-sum       mean over rows of a row's sum
    seq-mean-token-sum-norm  the same divided by a constant horizon (Dr.GRPO)

Gradients accumulate over micro-batches and workers, so a micro-batch must not divide by its own counts. Count once
over the whole update (`Denominators`), before anything is rejected: the chunks then add up to the whole, and rejecting
tokens lowers the gradient instead of inflating what is left.

Legend: B rows (trajectories or steps), T tokens. Masks are bool, True on trained tokens.
"""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from flywheel.errors import ConfigError, TrainingError
from flywheel.sections import Aggregation

# Guards the division by an empty mask; the references' own value, so that their figures are met to 1e-9.
GUARD = 1e-8


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over one whole update: every micro-batch of every worker.

    `rows` counts rows with at least one trained token. `horizon` is the constant of `seq-mean-token-sum-norm`, in
    tokens. `world_size` undoes the averaging of gradients over workers; 1 where gradients are summed.
    """

    tokens: int
    rows: int
    horizon: int
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.rows < 1:
            raise TrainingError("An update holds no trained token; check the masks of its samples.")

    @classmethod
    def of(cls, mask_BT: Tensor, *, horizon: int | None = None, world_size: int = 1) -> "Denominators":
        """Counted from the mask of the whole update; `horizon` defaults to T. Raises `TrainingError` if it is empty."""
        tokens_B = mask_BT.sum(-1)
        return cls(int(tokens_B.sum()), int((tokens_B > 0).sum()), horizon or mask_BT.shape[-1], world_size)


def aggregate(
    value_BT: Tensor,
    mask_BT: Tensor,
    mode: Aggregation,
    denominators: Denominators | None = None,
    *,
    row_tokens_B: Tensor | None = None,
) -> Tensor:
    """Sum masked values and divide by the counts of the whole update.

    Values outside the mask are never read, so they may be anything, even nan. Without a single trained token the
    result is 0 and still carries a (zero) gradient, as long as `denominators` are given.

    Args:
        value_BT: any float values, one a token.
        mask_BT: bool.
        denominators: of the whole update; None counts this batch alone.
        row_tokens_B: trained tokens of each row before rejection and before it was cut into chunks; None counts
            `mask_BT`. Only `seq-mean-token-mean` reads it.
    Returns: scalar.
    Raises: ConfigError for an unknown mode; TrainingError if nothing is trained and no denominators are given.
    """
    if mode not in get_args(Aggregation):
        raise ConfigError(f"Unknown aggregation {mode!r}; choose one of {', '.join(get_args(Aggregation))}.")
    count = denominators or Denominators.of(mask_BT)
    sum_B = torch.where(mask_BT, value_BT, 0.0).sum(-1)
    if mode == "seq-mean-token-mean":
        tokens_B = mask_BT.sum(-1) if row_tokens_B is None else row_tokens_B
        sum_B = sum_B / tokens_B.clamp(min=1)
    divisor = {
        "token-mean": count.tokens,
        "token-sum": 1,
        "seq-mean-token-sum-norm": count.rows * count.horizon,
    }.get(mode, count.rows)
    return sum_B.sum() / divisor * count.world_size


def masked_mean(value: Tensor, weight: Tensor, dim: int | None = None) -> Tensor:
    """Mean of `value` under a mask, or under non-negative weights of the same shape; 0 where they sum to 0."""
    weight = weight.to(value.dtype)
    weighted = torch.where(weight > 0, value, 0.0) * weight
    return weighted.sum(dim) / (weight.sum(dim) + GUARD)


def whiten(value: Tensor, weight: Tensor) -> Tensor:
    """Shift to mean 0 and scale to variance 1 (n / (n - 1) corrected) under a mask or under counts.

    With counts an entry stands for that many equal tokens, so whitening rows by their token counts equals whitening
    their tokens.

    Raises: TrainingError if fewer than two units are counted.
    """
    count = float(weight.sum())
    if count <= 1:
        raise TrainingError("Whitening needs at least two trained tokens in the batch.")
    centred = value - masked_mean(value, weight)
    variance = masked_mean(centred.square(), weight) * (count / (count - 1))
    return centred * torch.rsqrt(variance + GUARD)
