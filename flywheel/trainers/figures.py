"""What is measured of an update beside its loss."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from flywheel.trainers.advantages import count_groups, group_ids
from flywheel.trainers.credit import Credit
from flywheel.trainers.rollout import Rollout


def summable(metrics: Mapping[str, float], tokens: int) -> dict[str, float]:
    """A row's figures so that those of several rows add up: means times the row's `trained` tokens."""
    means = dict(metrics)
    loss, trained = means.pop("loss"), means.pop("tokens")
    scaled = {name: trained * value for name, value in means.items()}
    return {**scaled, "loss": loss, "tokens": float(tokens), "trained": trained}


def batch_figures(rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> dict[str, float]:
    """What a batch looked like. Groups are told apart by advantages: a penalty may differ where rewards agree."""
    advantage_B = torch.tensor([one.advantage for one in credits], dtype=torch.float64)
    groups = count_groups(advantage_B, group_ids([rollout.sample.group_id for rollout in rollouts]))
    return {
        "reward": float(np.mean([rollout.reward for rollout in rollouts])),
        "mean_abs_advantage": float(np.mean([np.abs(one.advantage_K).mean() for one in credits])),
        "informative_groups": groups.informative,
    }


def mismatch_figures(
    rollouts: Sequence[Rollout], credits: Sequence[Credit], measured: Sequence[Mapping[str, float]], *, scored: bool
) -> dict[str, float]:
    """How far the trainer's logprobs are from the engine's: `mean_abs_dlogp`, and `mismatch_k3` (a KL in nats).

    Both hold the same weights only until the first step. `scored` credits hold the trainer's logprobs from before it;
    else what the first step measured has to do. With them come the means of correction weights, and of what is kept.
    """
    if not scored:
        first = measured[0] if measured else {}
        names = {"mean_abs_dlogp": "mean_abs_dlogp", "mismatch_k3": "approx_kl"}
        return {name: first[source] for name, source in names.items() if source in first}
    own = [(r, c) for r, c in zip(rollouts, credits, strict=True) if not r.replayed]
    d_N = np.concatenate([c.old_logp_K - r.sample.logprobs[r.sample.train_mask] for r, c in own]).astype(np.float64)
    return {
        "mean_abs_dlogp": float(np.abs(d_N).mean()),
        "mismatch_k3": float((np.exp(d_N) - d_N - 1).mean()),
        "correction_weight": float(np.concatenate([c.weight_K for _, c in own]).mean()),
        "kept": float(np.concatenate([c.kept_K for _, c in own]).mean()),
    }
