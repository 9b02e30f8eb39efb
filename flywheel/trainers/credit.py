"""Credit: from the rewards of one update's rollouts to an advantage for each trained token.

An algorithm grants advantages a trajectory, a step (turn) or a token; here all of them end as one a token, so that
objectives need not know where they came from. A step is a run of trained tokens: between two turns there are always
tokens of an observation.

Legend: B rollouts of an update, S steps of all rollouts in order, K trained tokens of one rollout, T the longest K.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flywheel.errors import TrainingError
from flywheel.trainers.advantages import group_ids, overlong_penalty
from flywheel.trainers.algorithms import Algorithm
from flywheel.types import TrainingSample, Trajectory


@dataclass(frozen=True, slots=True)
class Rollout:
    """One judged trajectory as the trainer needs it: its document, and `reward`, which is maximised.

    A `replayed` one was sampled by another policy, and is corrected for that.
    """

    trajectory: Trajectory
    sample: TrainingSample
    reward: float
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Credit:
    """What one rollout is to teach; arrays have one entry for each of its K trained tokens, in order.

    advantage_K: unitless, float64.
    old_logp_K: logprobs (nats, float32) from which ratios are taken: as recorded when sampled.
    step_K: number of the token's turn among the turns of its document, int64.
    weight_K: importance weights on the loss, float32; 1 where ratios are taken from what was recorded.
    """

    advantage_K: np.ndarray
    old_logp_K: np.ndarray
    step_K: np.ndarray
    weight_K: np.ndarray

    @property
    def advantage(self) -> float:
        """Mean over the tokens: what is kept with the trajectory."""
        return float(self.advantage_K.mean())

    @property
    def informative(self) -> bool:
        return bool(self.advantage_K.any())


def credit(algorithm: Algorithm, rollouts: Sequence[Rollout], *, horizon: int) -> list[Credit]:
    """One entry a rollout; advantages are exactly 0 in groups without spread.

    Args:
        horizon: most tokens that a trajectory can sample; the limit of DAPO's penalty.
    Raises: TrainingError for a rollout without a trained token.
    """
    reward_B = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
    tokens_B = torch.tensor([int(rollout.sample.train_mask.sum()) for rollout in rollouts])
    if not tokens_B.all():
        raise TrainingError("A trajectory without a trained token reached policy gradient; filter it out before.")
    if "overlong_penalty" in algorithm.needs:
        reward_B = reward_B + overlong_penalty(tokens_B, horizon, horizon // 4)
    advantage_B = algorithm.advantage(reward_B, group_ids([rollout.sample.group_id for rollout in rollouts]), tokens_B)
    return [_spread(*pair) for pair in zip(rollouts, advantage_B, strict=True)]


def _spread(rollout: Rollout, advantage: Tensor) -> Credit:
    mask = rollout.sample.train_mask
    step_K = steps_of(mask)
    weight_K = np.ones(len(step_K), np.float32)
    return Credit(np.full(len(step_K), float(advantage)), rollout.sample.logprobs[mask], step_K, weight_K)


def steps_of(train_mask: np.ndarray) -> np.ndarray:
    """Number of the run that each trained token of a document belongs to, (K,), int64."""
    starts = train_mask & ~np.concatenate([[False], train_mask[:-1]])
    return (np.cumsum(starts) - 1)[train_mask].astype(np.int64)
