"""One look at the rollouts of an update before it: logprobs, entropies and hidden states under the trained policy.

Recorded logprobs are the engine's. Corrections and replay compare them with the trainer's own, step selection asks for
entropies, a critic reads hidden states. Algorithms that need none of it do not pay for the pass.

Shapes: K trained tokens of one rollout, D hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from flywheel.trainers.ensemble import Ensemble
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import dealt, rows_of
from flywheel.types import TrainingSample


@dataclass(frozen=True, slots=True)
class Score:
    """What the policy says of one rollout's trained tokens: logprobs and entropies (nats, float32), hidden states."""

    logp_K: np.ndarray
    entropy_K: np.ndarray
    hidden_KD: Tensor


def score(
    policy: PolicyModel,
    samples: Sequence[TrainingSample],
    ensemble: Ensemble,
    *,
    pack_tokens: int,
    temperature: float,
    hidden: bool,
) -> list[Score]:
    """One entry a sample, on the first process; each process passes its share of the rows.

    Args:
        hidden: whether hidden states are wanted; D is 0 without.
    """
    if not samples:
        return []
    own = dealt(list(rows_of(samples, pack_tokens)), ensemble.rank, ensemble.world)
    found = [_row(policy, part, temperature, hidden) for part, _ in own]
    if ensemble.world > 1:
        found = [[_moved(one, "cpu") for one in row] for row in found]
    every = chain.from_iterable(zip(*ensemble.gathered(found), strict=True))
    scores = list(chain.from_iterable(every))[: len(samples)]
    return scores if ensemble.world == 1 else [_moved(one, policy.model.device) for one in scores]


@torch.no_grad()
def _row(policy: PolicyModel, part: Sequence[TrainingSample], temperature: float, hidden: bool) -> list[Score]:
    row = policy.pack(part)
    logp_K, entropy_K, hidden_KD = policy.inspect(row, temperature)
    counts = np.bincount(row.document_K).tolist()
    kept_KD = hidden_KD if hidden else hidden_KD[:, :0]
    pieces = zip(*(x.split(counts) for x in (logp_K, entropy_K, kept_KD)), strict=True)
    return [Score(logp.cpu().numpy(), entropy.cpu().numpy(), states) for logp, entropy, states in pieces]


def _moved(one: Score, device: torch.device | str) -> Score:
    """Copied: what is left of a row's tensor would travel whole with each of its pieces."""
    return replace(one, hidden_KD=one.hidden_KD.to(device, copy=True))
