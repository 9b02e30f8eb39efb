"""Credit: from the rewards of one update's rollouts to an advantage for each trained token.

An algorithm grants advantages a trajectory, a step (turn) or a token; here all of them end as one a token, so that
objectives need not know where they came from. Corrections and step selection end here too, as weights and a mask.

Legend: B rollouts of an update, S their steps in order, K trained tokens of one rollout, T the longest K.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flywheel.errors import TrainingError
from flywheel.sections import RlConfig
from flywheel.trainers.advantages import group_ids, others_mean, overlong_penalty
from flywheel.trainers.algorithms import Algorithm
from flywheel.trainers.corrections import correct, top_quantile_mask
from flywheel.trainers.critic import Critic, Lesson
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.scoring import Score
from flywheel.trainers.steps import make_steps, steps_in

DART_QUANTILE = 0.2
"""Steps below this quantile of entropy are left out where an algorithm selects steps."""


@dataclass(frozen=True, slots=True)
class Credit:
    """What one rollout is to teach; arrays have one entry for each of its K trained tokens, in order.

    advantage_K: unitless, float64.
    old_logp_K: logprobs (nats, float32) from which ratios are taken: as recorded when sampled, or, where a correction
        compares the two, as the trainer sees them before the update.
    step_K: number of the token's step in its document, int64.
    weight_K: correction weights on the policy term, float32.
    kept_K: bool; False on what is rejected or not selected. It still counts in the denominators.
    lesson: what a critic learns from it, if there is one.
    """

    advantage_K: np.ndarray
    old_logp_K: np.ndarray
    step_K: np.ndarray
    weight_K: np.ndarray
    kept_K: np.ndarray
    lesson: Lesson | None = None

    @property
    def advantage(self) -> float:
        """Mean over the tokens: what is kept with the trajectory."""
        return float(self.advantage_K.mean())

    @property
    def informative(self) -> bool:
        return bool(self.advantage_K.any())

    @property
    def steps(self) -> int:
        return int(self.step_K[-1]) + 1


def credit(
    algorithm: Algorithm,
    rollouts: Sequence[Rollout],
    *,
    horizon: int,
    scores: Sequence[Score] | None = None,
    critic: Critic | None = None,
) -> list[Credit]:
    """One entry a rollout; without a critic, advantages are exactly 0 in groups without spread.

    Args:
        horizon: most tokens that a trajectory can sample; the limit of DAPO's penalty.
        scores: what the trained policy says of the rollouts; needed with a critic.
    Raises: TrainingError for a rollout without a trained token.
    """
    if not all(rollout.sample.train_mask.any() for rollout in rollouts):
        raise TrainingError("A trajectory without a trained token reached policy gradient; filter it out before.")
    if algorithm.unit == "token":
        if scores is None or critic is None:
            raise ValueError(f"{algorithm.name!r} needs a critic and what the policy says of the rollouts.")
        return _by_token(algorithm, rollouts, scores, critic)
    if algorithm.unit == "step":
        return _by_step(algorithm, rollouts, scores, critic)
    return _by_trajectory(algorithm, rollouts, horizon)


def _plain(rollout: Rollout, advantage_K: np.ndarray, lesson: Lesson | None = None) -> Credit:
    mask = rollout.sample.train_mask
    ones_K = np.ones(len(advantage_K), np.float32)
    return Credit(advantage_K, rollout.sample.logprobs[mask], steps_in(mask), ones_K, ones_K.astype(bool), lesson)


def _by_trajectory(algorithm: Algorithm, rollouts: Sequence[Rollout], horizon: int) -> list[Credit]:
    reward_B = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
    tokens_B = torch.tensor([int(rollout.sample.train_mask.sum()) for rollout in rollouts])
    if "overlong_penalty" in algorithm.needs:
        reward_B = reward_B + overlong_penalty(tokens_B, horizon, horizon // 4)
    advantage_B = algorithm.advantage(reward_B, group_ids([rollout.sample.group_id for rollout in rollouts]), tokens_B)
    rows = zip(rollouts, advantage_B.tolist(), tokens_B.tolist(), strict=True)
    return [_plain(rollout, np.full(tokens, advantage)) for rollout, advantage, tokens in rows]


def _by_step(
    algorithm: Algorithm, rollouts: Sequence[Rollout], scores: Sequence[Score] | None, critic: Critic | None
) -> list[Credit]:
    """A critic of steps looks at the state in which a step begins, and learns whether its trajectory succeeds."""
    lessons: list[Lesson] = []
    if critic is not None and scores is not None:
        lessons = [_verdict(critic, *pair) for pair in zip(rollouts, scores, strict=True)]
    values = [lesson.value_N.double().cpu().numpy() for lesson in lessons] or None
    advantage_S = algorithm.advantage(make_steps(rollouts, values)).numpy()
    steps = [steps_in(rollout.sample.train_mask) for rollout in rollouts]
    starts = np.cumsum([0, *(own[-1] + 1 for own in steps)])
    return [
        _plain(rollout, advantage_S[starts[b] + steps[b]], lessons[b] if lessons else None)
        for b, rollout in enumerate(rollouts)
    ]


def _verdict(critic: Critic, rollout: Rollout, score: Score) -> Lesson:
    first = np.flatnonzero(np.diff(steps_in(rollout.sample.train_mask), prepend=-1))
    state_ND = score.hidden_KD[torch.from_numpy(first)]
    value_N = critic.read(state_ND)
    return Lesson(state_ND, value_N, torch.full_like(value_N, float(rollout.trajectory.success)))


def _by_token(
    algorithm: Algorithm, rollouts: Sequence[Rollout], scores: Sequence[Score], critic: Critic
) -> list[Credit]:
    """The trajectory's reward comes with its last token. The critic knows how the task's other rollouts ended."""
    reward_B = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
    others_B = others_mean(reward_B, group_ids([rollout.sample.group_id for rollout in rollouts]))
    states = [_told(score.hidden_KD, others) for score, others in zip(scores, others_B.tolist(), strict=True)]
    values = [critic.read(state_ND) for state_ND in states]
    value_BT = torch.nn.utils.rnn.pad_sequence([value.double().cpu() for value in values], batch_first=True)
    length_B = torch.tensor([len(value) for value in values])
    mask_BT = torch.arange(value_BT.shape[1]) < length_B[:, None]
    reward_BT = torch.zeros_like(value_BT)
    reward_BT[torch.arange(len(rollouts)), length_B - 1] = reward_B
    advantage_BT, return_BT = algorithm.advantage(reward_BT, value_BT, mask_BT)
    credits = []
    for b, (rollout, state_ND, value_N) in enumerate(zip(rollouts, states, values, strict=True)):
        lesson = Lesson(state_ND, value_N, return_BT[b, : len(value_N)].to(value_N))
        credits.append(_plain(rollout, advantage_BT[b, : len(value_N)].numpy(), lesson))
    return credits


def _told(hidden_KD: Tensor, others: float) -> Tensor:
    return torch.cat([hidden_KD, hidden_KD.new_full((len(hidden_KD), 1), others)], 1)


# --- corrections and selection ---------------------------------------------------------------------------


def weighed(algorithm: Algorithm, config: RlConfig, credits: Sequence[Credit], scores: Sequence[Score]) -> list[Credit]:
    """With the weights and the mask of the chosen correction; ratios then start from the trainer's logprobs."""
    name = config.correction or algorithm.correction
    if name == "none":
        return list(credits)
    old_BT, rollout_BT = (_table(x) for x in ([s.logp_K for s in scores], [c.old_logp_K for c in credits]))
    mask_BT = _table([np.ones(len(c.step_K), bool) for c in credits])
    high = algorithm.correction_high if config.correction_high is None else config.correction_high
    weight_BT, kept_BT = correct(name, old_BT, rollout_BT, mask_BT, low=config.correction_low, high=high)
    rows = zip(credits, scores, _lines(weight_BT, mask_BT), _lines(kept_BT, mask_BT), strict=True)
    return [
        replace(one, old_logp_K=score.logp_K, weight_K=weight_K, kept_K=one.kept_K & kept_K)
        for one, score, weight_K, kept_K in rows
    ]


def selected(credits: Sequence[Credit], scores: Sequence[Score], quantile: float = DART_QUANTILE) -> list[Credit]:
    """Only steps whose mean entropy is at or above the quantile over all steps of the update (DART)."""
    means = [np.bincount(c.step_K, s.entropy_K) / np.bincount(c.step_K) for c, s in zip(credits, scores, strict=True)]
    entropy_S = torch.from_numpy(np.concatenate(means))
    kept_S = top_quantile_mask(entropy_S, torch.ones_like(entropy_S, dtype=torch.bool), quantile).numpy()
    starts = np.cumsum([0, *map(len, means)])
    return [replace(c, kept_K=c.kept_K & kept_S[starts[b] + c.step_K]) for b, c in enumerate(credits)]


def _table(parts: Sequence[np.ndarray]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True)


def _lines(value_BT: Tensor, mask_BT: Tensor) -> Iterator[np.ndarray]:
    return (value_T[mask_T].numpy() for value_T, mask_T in zip(value_BT, mask_BT, strict=True))
