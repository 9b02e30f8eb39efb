"""From logits to the distribution that is sampled: one definition for engine and trainer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flywheel.modeling.sending import sent


def log_policy(logits_KV: Tensor, temperature: float, forbidden_ids: Sequence[int]) -> Tensor:
    """Log-probabilities (nats) of every token, (K, V), float32.

    Temperature 0 means greedy sampling, whose recorded distribution is that of temperature 1. Forbidden ids (image
    placeholders and the like) have probability 0 in both engine and trainer, so that the two agree exactly.
    """
    scaled = logits_KV.float() / (temperature or 1.0)
    scaled = scaled.index_fill(-1, sent(torch.tensor(forbidden_ids, dtype=torch.int64), scaled.device), float("-inf"))
    return torch.log_softmax(scaled, -1)
