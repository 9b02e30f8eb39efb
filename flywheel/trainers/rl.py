"""Policy gradient on whole trajectories: credit over the update, then packed rows through the algorithm's objective.

Shapes: B rollouts of an update, K trained tokens of one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.sections import RlConfig
from flywheel.trainers.algorithms import Algorithm
from flywheel.trainers.credit import Credit, credit, selected, weighed
from flywheel.trainers.critic import make_critic
from flywheel.trainers.figures import batch_figures, mismatch_figures
from flywheel.trainers.learner import Learner
from flywheel.trainers.replayed import corrected
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.scoring import Score


class PolicyGradient:
    """One trainer for every algorithm of the table; what is heavy is its learner's, whose processes share it.

    Args:
        learner: holds the policy, and those of other processes follow it.
        states: folder of resumable states.
        parts: what else a state must hold, by name: objects with `state_dict` and `load_state_dict`.
    """

    def __init__(self, learner: Learner, states: Path, parts: Mapping[str, Any] | None = None) -> None:
        self.learner = learner
        policy, kind = learner.policy, self.algorithm.critic
        width = policy.model.config.text_config.hidden_size
        self._critic = make_critic(kind, width, self.config, policy.model.device) if kind else None
        self._trained = {"critic": self._critic} if self._critic else {}
        self.updates = learner.resume(states, {**self._trained, **(parts or {})})

    @property
    def config(self) -> RlConfig:
        """As it was adjusted."""
        return self.learner.config

    @property
    def algorithm(self) -> Algorithm:
        return self.learner.algorithm

    def save(self, kept: Collection[int] = ()) -> None:
        """Write a state to go on from; those of the updates `kept` stay whatever their age."""
        self.learner.save(self.updates, kept)

    def restore(self, update: int) -> None:
        """Everything that is trained, as it was after that update; the count of updates goes on."""
        self.learner.restore(update, tuple(self._trained))

    def adjust(self, changes: Mapping[str, Any], lr: float) -> None:
        """Go on with other terms.

        Args:
            changes: fields of the configuration.
            lr: factor on the configured learning rate.
        """
        self.learner.adjust(self.config.model_copy(update=dict(changes)), lr)

    def drift(self, rollouts: Sequence[Rollout]) -> float:
        """k3 (nats a token) to the policy that training started from, on one rollout of every other group, one row."""
        return self.learner.drift([rollout.sample for rollout in rollouts[:: 2 * self.config.group]])

    def credit(self, rollouts: Sequence[Rollout]) -> list[Credit]:
        """What each rollout is to teach: one advantage a trained token, exactly 0 in groups without spread."""
        scores = self._score(rollouts) if self._critic or self._corrects or self._selects else None
        horizon = self.learner.horizon
        credits = credit(self.algorithm, rollouts, horizon=horizon, scores=scores, critic=self._critic)
        if scores and self._corrects:
            credits = weighed(self.algorithm, self.config, credits, scores)
        return selected(credits, scores) if scores and self._selects else credits

    def update(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> dict[str, float]:
        """`epochs` passes of `minibatches` optimiser steps; the mean of what they measured.

        A critic learns first; while it is not to be trusted yet, it learns alone.
        """
        credits = corrected(rollouts, credits, partial(self.learner.score, hidden=False))
        fitted = self._fit(credits)
        measured, ended = ([], {}) if fitted.get("policy_frozen") else self._learn(rollouts, credits)
        self.updates += 1
        means = {name: float(np.mean([m[name] for m in measured])) for name in (measured[0] if measured else ())}
        mismatch = mismatch_figures(rollouts, credits, measured, scored=self._corrects)
        return {**means, **mismatch, **batch_figures(rollouts, credits), **fitted, **ended}

    def _learn(
        self, rollouts: Sequence[Rollout], credits: Sequence[Credit]
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """Lessons are the critic's alone."""
        return self.learner.learn(rollouts, [replace(one, lesson=None) for one in credits], self.updates)

    def _fit(self, credits: Sequence[Credit]) -> dict[str, float]:
        if self._critic is None:
            return {}
        figures = self._critic.fit([one.lesson for one in credits if one.lesson is not None])
        return {**figures, "policy_frozen": float(not self._critic.trusted())}

    def _score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        samples = [rollout.sample for rollout in rollouts]
        return self.learner.score(samples, hidden=self._critic is not None)

    @property
    def _corrects(self) -> bool:
        return (self.config.correction or self.algorithm.correction) != "none"

    @property
    def _selects(self) -> bool:
        return "entropy_selection" in self.algorithm.needs
