"""Replayed rows: what another policy sampled, weighed as if the present one had.

    w_t = min(exp(old_t - behaviour_t), 2),   old: this policy's logprob before the update, behaviour: as recorded

Ratios of a replayed row start from `old` (so they are 1 and the clip means what it means for every other row), and its
loss is multiplied by w: truncated importance sampling, token by token. A script says one thing only, so the logprob of
a demonstration is 0 and w is the policy's own probability of the token, at most 1.

Source: decoupled PPO, arXiv:2110.00641; truncation as in `corrections.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from flywheel.trainers.corrections import importance_weights
from flywheel.trainers.credit import Credit
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.scoring import Score
from flywheel.types import TrainingSample


def corrected(
    rollouts: Sequence[Rollout], credits: Sequence[Credit], score: Callable[[Sequence[TrainingSample]], Sequence[Score]]
) -> list[Credit]:
    """The credits, those of replayed rollouts with this policy's `old_logp_K` and with importance weights.

    Args:
        score: what this policy says of documents, before the update.
    """
    done = list(credits)
    replayed = [b for b, rollout in enumerate(rollouts) if rollout.replayed]
    samples = [rollouts[b].sample for b in replayed]
    scores = score(samples) if samples else []
    for b, sample, scored in zip(replayed, samples, scores, strict=True):
        old_K, behaviour_K = torch.from_numpy(scored.logp_K), torch.from_numpy(sample.logprobs[sample.train_mask])
        every_K = torch.ones_like(old_K, dtype=torch.bool)
        weight_K = importance_weights(old_K[None], behaviour_K[None], every_K[None])[0]
        done[b] = replace(credits[b], old_logp_K=scored.logp_K, weight_K=weight_K.numpy())
    return done
