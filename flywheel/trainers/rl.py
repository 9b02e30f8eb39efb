"""Policy gradient on whole trajectories: credit over the update, then packed rows through the algorithm's objective.

Losses are divided by the counts of the whole step, so cutting a step into rows changes nothing.

Shapes: B rollouts of an update, K trained tokens of one.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flywheel.config import RlConfig
from flywheel.seeds import derive_seed
from flywheel.trainers.advantages import count_groups, group_ids
from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.algorithms import algorithm
from flywheel.trainers.checkpoints import TrainerStates
from flywheel.trainers.credit import Credit, Rollout, credit
from flywheel.trainers.gradients import GradientWatch
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.objectives import OBJECTIVES
from flywheel.trainers.optimisation import Optimisation, constant
from flywheel.trainers.packing import rows_of
from flywheel.trainers.replayed import corrected


class PolicyGradient:
    """One trainer for every algorithm of the table.

    Args:
        policy: trained in place.
        config: algorithm, learning rate, clips and terms.
        pack_tokens: tokens of a packed row.
        states: folder of resumable states.
        horizon: most tokens that a trajectory can sample; the constant of Dr.GRPO and the limit of DAPO's penalty.
        seed: shuffles minibatches.
        parts: what else a state must hold, by name: objects with `state_dict` and `load_state_dict`.
        watch: decides which optimiser steps are taken.
    """

    def __init__(
        self,
        policy: PolicyModel,
        config: RlConfig,
        *,
        pack_tokens: int,
        states: Path,
        horizon: int,
        seed: int,
        parts: Mapping[str, Any] | None = None,
        watch: GradientWatch | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        self.algorithm = algorithm(config.algorithm)
        self._pack_tokens, self._horizon, self._seed = pack_tokens, horizon, seed
        self._objective = OBJECTIVES[self.algorithm.objective](policy, config, self.algorithm)
        self._optimisation = Optimisation(
            policy.trainable,
            lr=config.lr,
            betas=config.betas,
            weight_decay=0.0,
            schedule=constant,
            grad_clip=config.grad_clip,
            watch=watch,
        )
        kept = {**self._optimisation.parts, **self._objective.parts, **(parts or {})}
        self._states = TrainerStates(states, policy.model, kept)
        self.updates = self._states.resume()

    def save(self, best: int | None = None) -> None:
        """Write a state to go on from; that of update `best` is kept whatever its age."""
        self._states.save(self.updates, best)

    def restore(self, update: int) -> None:
        """Everything that is trained, as it was after that update; the count of updates goes on."""
        self._states.load(update, (*self._optimisation.parts, *self._objective.parts))

    def adjust(self, changes: Mapping[str, Any], lr: float, start: Callable[[], PolicyModel]) -> None:
        """Go on with other terms.

        Args:
            changes: fields of the configuration.
            lr: factor on the configured learning rate.
            start: loads the policy that training started from; called for a KL term that is new.
        """
        self.config = self.config.model_copy(update=dict(changes))
        self._objective.adjust(self.config, start)
        self._optimisation.scale_lr(lr)

    def move_reference(self) -> None:
        """Measure KL against the policy as it is now, from here on."""
        self._objective.move_reference()

    def credit(self, rollouts: Sequence[Rollout]) -> list[Credit]:
        """What each rollout is to teach: one advantage a trained token, exactly 0 in groups without spread."""
        return credit(self.algorithm, rollouts, horizon=self._horizon)

    def update(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> dict[str, float]:
        """`epochs` passes of `minibatches` optimiser steps; the mean of what they measured."""
        credits = corrected(
            self.policy, rollouts, credits, temperature=self.config.temperature, pack_tokens=self._pack_tokens
        )
        self._objective.begin(rollouts, credits)
        measured: list[dict[str, float]] = []
        for epoch in range(self.config.epochs):
            random = np.random.default_rng(derive_seed(self._seed, "minibatches", self.updates, epoch))
            minibatches = min(self.config.minibatches, len(rollouts))
            for part in np.array_split(random.permutation(len(rollouts)), minibatches):
                measured += self._step([rollouts[b] for b in part], [credits[b] for b in part])
        self.updates += 1
        means = {name: float(np.mean([m[name] for m in measured])) for name in (measured[0] if measured else ())}
        # Engine and trainer hold the same weights only until the first step.
        means |= {name: measured[0][name] for name in ("mean_abs_dlogp",) if name in means}
        return {**means, **_figures(rollouts, credits), **self._objective.end()}

    def _step(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> list[dict[str, float]]:
        """One optimiser step and what it measured; none where no rollout has anything to say."""
        lengths = [int(rollout.sample.train_mask.sum()) for rollout in rollouts]
        denominators = Denominators(tokens=sum(lengths), rows=len(rollouts), horizon=self._horizon)
        pairs = zip(rollouts, credits, strict=True)
        training = {id(r.sample): (r.sample, c) for r, c in pairs if self._objective.trains(r, c)}
        totals: dict[str, float] = {}
        for part in rows_of([sample for sample, _ in training.values()], self._pack_tokens):
            row = self.policy.pack(part)
            loss, metrics = self._objective.loss(row, [training[id(sample)][1] for sample in part], denominators)
            self._optimisation.backward(loss)
            for name, value in _summable(metrics, row.tokens).items():
                totals[name] = totals.get(name, 0.0) + value
        if not totals:
            return []
        trained = totals.pop("trained")
        means = {name: v if name in ("loss", "tokens") else v / trained for name, v in totals.items()}
        return [{**means, **self._optimisation.step()}]


def _summable(metrics: Mapping[str, float], tokens: int) -> dict[str, float]:
    """A row's figures so that those of several rows add up: means times the row's `trained` tokens."""
    means = dict(metrics)
    loss, trained = means.pop("loss"), means.pop("tokens")
    scaled = {name: trained * value for name, value in means.items()}
    return {**scaled, "loss": loss, "tokens": float(tokens), "trained": trained}


def _figures(rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> dict[str, float]:
    """What a batch looked like. Groups are told apart by advantages: a penalty may differ where rewards agree."""
    advantage_B = torch.tensor([one.advantage for one in credits], dtype=torch.float64)
    groups = count_groups(advantage_B, group_ids([rollout.sample.group_id for rollout in rollouts]))
    return {
        "reward": float(np.mean([rollout.reward for rollout in rollouts])),
        "mean_abs_advantage": float(np.mean([np.abs(one.advantage_K).mean() for one in credits])),
        "informative_groups": groups.informative,
    }
