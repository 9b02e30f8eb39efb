"""Policy gradient on whole trajectories: credit over the update, then packed rows through the algorithm's objective.

Losses are divided by the counts of the whole step, so cutting a step into rows changes nothing.

Shapes: B rollouts of an update, K trained tokens of one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.sections import RlConfig
from flywheel.seeds import derive_seed
from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.algorithms import configured
from flywheel.trainers.checkpoints import TrainerStates
from flywheel.trainers.credit import Credit, credit, selected, weighed
from flywheel.trainers.critic import make_critic
from flywheel.trainers.figures import batch_figures, mismatch_figures, summable
from flywheel.trainers.gradients import GradientWatch
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.objectives import OBJECTIVES
from flywheel.trainers.optimisation import Optimisation, constant
from flywheel.trainers.packing import rows_of
from flywheel.trainers.reference import drift
from flywheel.trainers.replayed import corrected
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.scoring import Score, score


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
        self.algorithm = configured(config)
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
        width = policy.model.config.text_config.hidden_size
        kind = self.algorithm.critic
        self._critic = make_critic(kind, width, config, policy.model.device) if kind else None
        self._parts = {**self._optimisation.parts, **self._objective.parts}
        if self._critic:
            self._parts["critic"] = self._critic
        self._states = TrainerStates(states, policy.model, {**self._parts, **(parts or {})})
        self.updates = self._states.resume()

    def save(self, kept: Collection[int] = ()) -> None:
        """Write a state to go on from; those of the updates `kept` stay whatever their age."""
        self._states.save(self.updates, kept)

    def restore(self, update: int) -> None:
        """Everything that is trained, as it was after that update; the count of updates goes on."""
        self._states.load(update, tuple(self._parts))

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

    def drift(self, rollouts: Sequence[Rollout], start: Callable[[], PolicyModel]) -> float:
        """k3 (nats a token) to the policy that training started from, on one rollout of every other group, one row."""
        some = [rollout.sample for rollout in rollouts[:: 2 * self.config.group]]
        row = self.policy.pack(next(rows_of(some, self._pack_tokens)))
        return drift(self.policy, start(), row, self.config.temperature)

    def credit(self, rollouts: Sequence[Rollout]) -> list[Credit]:
        """What each rollout is to teach: one advantage a trained token, exactly 0 in groups without spread."""
        scores = self._score(rollouts) if self._critic or self._corrects or self._selects else None
        credits = credit(self.algorithm, rollouts, horizon=self._horizon, scores=scores, critic=self._critic)
        if scores and self._corrects:
            credits = weighed(self.algorithm, self.config, credits, scores)
        return selected(credits, scores) if scores and self._selects else credits

    def update(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> dict[str, float]:
        """`epochs` passes of `minibatches` optimiser steps; the mean of what they measured.

        A critic learns first; while it is not to be trusted yet, it learns alone.
        """
        credits = corrected(
            self.policy, rollouts, credits, temperature=self.config.temperature, pack_tokens=self._pack_tokens
        )
        fitted = self._fit(credits)
        measured, ended = ([], {}) if fitted.get("policy_frozen") else self._optimise(rollouts, credits)
        self.updates += 1
        means = {name: float(np.mean([m[name] for m in measured])) for name in (measured[0] if measured else ())}
        mismatch = mismatch_figures(rollouts, credits, measured, scored=self._corrects)
        return {**means, **mismatch, **batch_figures(rollouts, credits), **fitted, **ended}

    def _optimise(
        self, rollouts: Sequence[Rollout], credits: Sequence[Credit]
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """What each optimiser step measured, and the objective's figures of the whole."""
        self._objective.begin(rollouts, credits)
        measured: list[dict[str, float]] = []
        for epoch in range(self.config.epochs):
            random = np.random.default_rng(derive_seed(self._seed, "minibatches", self.updates, epoch))
            minibatches = min(self.config.minibatches, len(rollouts))
            for part in np.array_split(random.permutation(len(rollouts)), minibatches):
                measured += self._step([rollouts[b] for b in part], [credits[b] for b in part])
        return measured, self._objective.end()

    def _fit(self, credits: Sequence[Credit]) -> dict[str, float]:
        if self._critic is None:
            return {}
        figures = self._critic.fit([one.lesson for one in credits if one.lesson is not None])
        return {**figures, "policy_frozen": float(not self._critic.trusted())}

    def _score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        samples = [rollout.sample for rollout in rollouts]
        return score(self.policy, samples, pack_tokens=self._pack_tokens, temperature=self.config.temperature)

    @property
    def _corrects(self) -> bool:
        return (self.config.correction or self.algorithm.correction) != "none"

    @property
    def _selects(self) -> bool:
        return "entropy_selection" in self.algorithm.needs

    def _step(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> list[dict[str, float]]:
        """One optimiser step and what it measured; none where no rollout has anything to say."""
        lengths = [int(rollout.sample.train_mask.sum()) for rollout in rollouts]
        rows = sum(one.steps for one in credits) if self.algorithm.rows == "step" else len(rollouts)
        denominators = Denominators(tokens=sum(lengths), rows=rows, horizon=self._horizon)
        pairs = zip(rollouts, credits, strict=True)
        training = {id(r.sample): (r.sample, c) for r, c in pairs if self._objective.trains(r, c)}
        totals: dict[str, float] = {}
        parts = list(rows_of([sample for sample, _ in training.values()], self._pack_tokens))
        for part, following in pairwise([*parts, []]):
            row = self.policy.pack(part)
            self.policy.expect(following)
            loss, metrics = self._objective.loss(row, [training[id(sample)][1] for sample in part], denominators)
            self._optimisation.backward(loss)
            for name, value in summable(metrics, row.tokens).items():
                totals[name] = totals.get(name, 0.0) + value
        if not totals:
            return []
        trained = max(totals.pop("trained"), 1.0)
        means = {name: v if name in ("loss", "tokens") else v / trained for name, v in totals.items()}
        return [{**means, **self._optimisation.step()}]
