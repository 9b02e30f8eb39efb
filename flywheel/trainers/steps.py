"""Advantages of algorithms that judge single steps (turns): Step-GRPO, GiGPO, DART, WebRL.

Each takes the steps of one update and returns one advantage a step; the mathematics is in `advantages.py` and
`webrl.py`, here is where its inputs come from in a recorded trajectory.

Legend: S steps of all rollouts, rollout by rollout in order of time; K trained tokens of one rollout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flywheel.errors import TrainingError
from flywheel.trainers.advantages import gigpo, group_ids, group_relative, step_returns
from flywheel.trainers.anchors import anchor
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.webrl import webrl_advantage
from flywheel.types import Screenshot

GIGPO_DISCOUNT = 0.95
WEBRL_DISCOUNT = 0.9


@dataclass(frozen=True, slots=True)
class Steps:
    """Every step of an update.

    score_S: reward of the step's whole trajectory.
    solved_S, parsed_S: bool; whether its trajectory reached the goal, whether its own action could be read.
    group_S, trajectory_S: int64 ids of task and rollout.
    last_S: bool, True on the last step of each rollout.
    value_S: a critic's probability of success before the step; 0 without a critic.
    screens: what each step saw.
    """

    score_S: Tensor
    solved_S: Tensor
    parsed_S: Tensor
    group_S: Tensor
    trajectory_S: Tensor
    last_S: Tensor
    value_S: Tensor
    screens: tuple[Screenshot | None, ...]

    def returns(self, gamma: float) -> Tensor:
        """Discounted return of each step, (S,): the trajectory's reward comes at its last step."""
        return step_returns(torch.where(self.last_S, self.score_S, 0.0), self.trajectory_S, gamma)


def steps_in(train_mask: np.ndarray) -> np.ndarray:
    """Number of the step that each trained token of a document belongs to, (K,), int64.

    A step is a run of trained tokens: between two turns there are always tokens of an observation.
    """
    starts = train_mask & ~np.concatenate([[False], train_mask[:-1]])
    return (np.cumsum(starts) - 1)[train_mask].astype(np.int64)


def make_steps(rollouts: Sequence[Rollout], values: Sequence[np.ndarray] | None = None) -> Steps:
    """The steps of these rollouts, with a critic's value of each if given (one array a rollout).

    Raises: TrainingError where a document does not hold the turns of its trajectory.
    """
    turns = [[turn for turn in rollout.trajectory.turns if turn.completion_ids] for rollout in rollouts]
    counts = [len(own) for own in turns]
    for rollout, count in zip(rollouts, counts, strict=True):
        if int(steps_in(rollout.sample.train_mask)[-1]) + 1 != count:
            raise TrainingError(f"The document of trajectory {rollout.trajectory.id} does not hold its {count} turns.")

    def repeat(values: Sequence[float | bool | int]) -> Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values), counts))

    every = [turn for own in turns for turn in own]
    return Steps(
        score_S=repeat([rollout.reward for rollout in rollouts]).double(),
        solved_S=repeat([rollout.trajectory.success for rollout in rollouts]),
        parsed_S=torch.tensor([turn.action is not None for turn in every]),
        group_S=repeat(group_ids([rollout.sample.group_id for rollout in rollouts]).tolist()),
        trajectory_S=repeat(range(len(rollouts))),
        last_S=torch.tensor([number == count for count in counts for number in range(1, count + 1)]),
        value_S=torch.zeros(len(every)).double() if values is None else torch.from_numpy(np.concatenate(values)),
        screens=tuple(turn.observation.screenshot for turn in every),
    )


def step_grpo(steps: Steps) -> Tensor:
    """1 for a step whose trajectory succeeded and whose action is well formed, normalised over all steps of a task."""
    return group_relative((steps.solved_S & steps.parsed_S).double(), steps.group_S)


def dart(steps: Steps) -> Tensor:
    """The trajectory's reward at each of its steps, normalised over all steps of a task (population deviation)."""
    return group_relative(steps.score_S, steps.group_S, bessel=False, eps=0.0)


def gigpo_by_screen(steps: Steps) -> Tensor:
    """Episode part plus step part among steps of a task that saw the same screen; see `advantages.gigpo`."""
    anchor_S = group_ids([anchor(screen) or f"blind {number}" for number, screen in enumerate(steps.screens)])
    return gigpo(steps.score_S, steps.returns(GIGPO_DISCOUNT), steps.group_S, anchor_S)


def webrl(steps: Steps) -> Tensor:
    """Gain of the critic's probability of success, plus reward and Monte Carlo return; after the last step it is 0."""
    next_S = torch.where(steps.last_S, 0.0, steps.value_S.roll(-1))
    solved_S = steps.solved_S.double()
    reward_S = torch.where(steps.last_S, solved_S, 0.0)
    return webrl_advantage(steps.value_S, next_S, reward_S, step_returns(reward_S, steps.trajectory_S, WEBRL_DISCOUNT))
