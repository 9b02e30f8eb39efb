"""What every process of policy gradient holds: the policy, its optimiser, and an objective to train it by.

Who plays and decides (`rl.PolicyGradient`) is on the first process only and calls a learner; the learners of the others
do the same with their share of the rows. Losses are divided by the counts of the whole step and gradients are summed
over processes, so that neither cutting a step into rows nor dealing them out changes anything.

Shapes: B rollouts of an update.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from flywheel.sections import RlConfig, SftConfig
from flywheel.seeds import derive_seed
from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.algorithms import configured
from flywheel.trainers.checkpoints import TrainerStates
from flywheel.trainers.credit import Credit
from flywheel.trainers.ensemble import Ensemble, together
from flywheel.trainers.figures import summable
from flywheel.trainers.gradients import GradientWatch
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.objectives import OBJECTIVES
from flywheel.trainers.optimisation import Optimisation, constant
from flywheel.trainers.packing import dealt, rows_of
from flywheel.trainers.progress import Silent
from flywheel.trainers.reference import drift
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.scoring import Score, score
from flywheel.trainers.sft import train_sft
from flywheel.trainers.sharding import copy_whole
from flywheel.types import TrainingSample


class Learner:
    """One process's part in training; with a single process, all of it.

    Args:
        policy: trained in place.
        config: algorithm, learning rate, clips and terms.
        ensemble: the processes that train together.
        start: loads the policy that training started from.
        pack_tokens: tokens of a packed row.
        horizon: most tokens that a trajectory can sample; the constant of Dr.GRPO and the limit of DAPO's penalty.
        seed: shuffles minibatches.
        watch: decides which optimiser steps are taken; all processes decide alike.
        engine: the whole weights that episodes are played with, where the trained ones are spread over processes.
    """

    def __init__(
        self,
        policy: PolicyModel,
        config: RlConfig,
        ensemble: Ensemble,
        *,
        start: Callable[[], PolicyModel],
        pack_tokens: int,
        horizon: int,
        seed: int,
        watch: GradientWatch | None = None,
        engine: nn.Module | None = None,
    ) -> None:
        self.policy, self.config, self.ensemble = policy, config, ensemble
        self.algorithm = configured(config)
        self._start, self._engine, self._watch = start, engine, watch
        self.horizon, self._pack_tokens, self._seed = horizon, pack_tokens, seed
        self._objective = OBJECTIVES[self.algorithm.objective](policy, config, self.algorithm, start)
        self._optimisation = Optimisation(
            policy.trainable,
            lr=config.lr,
            betas=config.betas,
            weight_decay=0.0,
            schedule=constant,
            grad_clip=config.grad_clip,
            watch=watch,
        )
        self.parts: dict[str, Any] = {**self._optimisation.parts, **self._objective.parts}

    def resume(self, states: Path, parts: Mapping[str, Any]) -> int:
        """Go on from the newest state in a folder; the number of updates it has seen.

        Args:
            parts: what else a state holds, by name; those of the first process are what is saved.
        """
        beside = {"gradients": self._watch} if self._watch else {}
        self._states = TrainerStates(states, self.policy.model, {**self.parts, **beside, **parts})
        return self._states.resume()

    @together
    def save(self, updates: int, kept: Collection[int]) -> None:
        """Write a state to go on from; those of the updates `kept` stay whatever their age."""
        self._states.save(updates, kept)

    @together
    def restore(self, update: int, parts: Sequence[str]) -> None:
        """The weights, and these parts, as they were after an update; what gradients had been refused is forgotten."""
        held = {*self.parts, *parts} if self.ensemble.first else self.parts
        self._states.load(update, tuple(held))
        if self._watch:
            self._watch.forgive()

    @together
    def adjust(self, config: RlConfig, lr: float) -> None:
        """Go on with other clips and terms, and this factor on the configured learning rate."""
        self.config = config
        self._objective.adjust(config)
        self._optimisation.scale_lr(lr)

    @together
    def move_reference(self) -> None:
        """Measure KL against the policy as it is now, from here on."""
        self._objective.move_reference()

    @together
    def hand_over(self) -> None:
        """Give the engine the weights as they are now, where it does not share them: a new round of episodes begins,
        whose screenshots nobody has seen."""
        self.ensemble.forget()
        copy_whole(self.policy.model, self._engine)

    @together
    def drift(self, samples: Sequence[TrainingSample]) -> float:
        """k3 (nats a token) to the policy that training started from, on the first row of these."""
        row = self.policy.pack(next(rows_of(samples, self._pack_tokens)))
        return drift(self.policy, self._start(), row, self.config.temperature)

    @together
    def supervise(
        self, samples: Sequence[TrainingSample], config: SftConfig, *, steps: int, seed: int, states: Path
    ) -> None:
        """A round of supervised fine-tuning, with an optimiser of its own."""
        train_sft(self.policy, samples, config, steps=steps, seed=seed, states=states, report=Silent())

    @together
    def score(self, samples: Sequence[TrainingSample], *, hidden: bool) -> list[Score]:
        """What the policy says of documents, on the first process; `hidden` asks for hidden states too."""
        return score(
            self.policy,
            samples,
            self.ensemble,
            pack_tokens=self._pack_tokens,
            temperature=self.config.temperature,
            hidden=hidden,
        )

    @together
    def learn(
        self, rollouts: Sequence[Rollout], credits: Sequence[Credit], update: int
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """`epochs` passes of `minibatches` optimiser steps: what each step measured, and the objective's figures."""
        self._objective.begin(rollouts, credits)
        measured: list[dict[str, float]] = []
        for epoch in range(self.config.epochs):
            random = np.random.default_rng(derive_seed(self._seed, "minibatches", update, epoch))
            minibatches = min(self.config.minibatches, len(rollouts))
            for part in np.array_split(random.permutation(len(rollouts)), minibatches):
                measured += self._step([rollouts[b] for b in part], [credits[b] for b in part])
        return measured, self._objective.end()

    def _step(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> list[dict[str, float]]:
        """One optimiser step and what it measured; none where no rollout has anything to say."""
        lengths = [int(rollout.sample.train_mask.sum()) for rollout in rollouts]
        rows = sum(one.steps for one in credits) if self.algorithm.rows == "step" else len(rollouts)
        denominators = Denominators(tokens=sum(lengths), rows=rows, horizon=self.horizon)
        pairs = zip(rollouts, credits, strict=True)
        training = {id(r.sample): (r.sample, c) for r, c in pairs if self._objective.trains(r, c)}
        if not training:
            return []
        totals: dict[str, float] = {}
        world = self.ensemble.world
        parts = dealt(list(rows_of([s for s, _ in training.values()], self._pack_tokens)), self.ensemble.rank, world)
        for (part, counts), (following, _) in pairwise([*parts, ([], False)]):
            row = self.policy.pack(part)
            self.policy.expect(following)
            loss, metrics = self._objective.loss(row, [training[id(sample)][1] for sample in part], denominators)
            self._optimisation.backward(loss * (world if counts else 0))  # gradients of several processes are averaged
            for name, value in summable(metrics, row.tokens).items():
                totals[name] = totals.get(name, 0.0) + (value if counts else 0.0)
        totals = self.ensemble.total(totals)
        trained = max(totals.pop("trained"), 1.0)
        means = {name: v if name in ("loss", "tokens") else v / trained for name, v in totals.items()}
        return [{**means, **self._optimisation.step()}]
