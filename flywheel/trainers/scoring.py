"""One look at the rollouts of an update before it: logprobs, entropies and hidden states under the trained policy.

Recorded logprobs are the engine's. Corrections and replay compare them with the trainer's own, step selection asks for
entropies, a critic reads hidden states. Algorithms that need none of it do not pay for the pass.

Shapes: K trained tokens of one rollout, D hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import rows_of
from flywheel.types import TrainingSample


@dataclass(frozen=True, slots=True)
class Score:
    """What the policy says of one rollout's trained tokens: logprobs and entropies (nats, float32), hidden states."""

    logp_K: np.ndarray
    entropy_K: np.ndarray
    hidden_KD: Tensor


@torch.no_grad()
def score(
    policy: PolicyModel, samples: Sequence[TrainingSample], *, pack_tokens: int, temperature: float
) -> list[Score]:
    """One entry a sample."""
    scores: list[Score] = []
    for part in rows_of(samples, pack_tokens):
        row = policy.pack(part)
        logp_K, entropy_K, hidden_KD = policy.inspect(row, temperature)
        counts = np.bincount(row.document_K).tolist()
        pieces = zip(*(x.split(counts) for x in (logp_K, entropy_K, hidden_KD)), strict=True)
        scores += [Score(logp.cpu().numpy(), entropy.cpu().numpy(), hidden) for logp, entropy, hidden in pieces]
    return scores
