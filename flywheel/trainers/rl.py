"""Policy gradient on whole trajectories: advantages over the update, then packed rows through a loss of the table.

Old logprobs are those recorded when the tokens were sampled; nothing is recomputed. Losses are divided by the counts of
the whole step, so cutting a step into rows changes nothing.

Shapes: B trajectories of an update, K trained tokens of a packed row, T the longest of its documents.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.config import RlConfig
from flywheel.errors import TrainingError
from flywheel.seeds import derive_seed
from flywheel.trainers.advantages import count_groups, group_ids, overlong_penalty
from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.algorithms import algorithm, policy_loss
from flywheel.trainers.checkpoints import TrainerStates
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.optimisation import Optimisation, constant
from flywheel.trainers.packing import PackedRow, pack, rows_of
from flywheel.types import TrainingSample


@dataclass(frozen=True, slots=True)
class Rollout:
    """One judged trajectory as the trainer needs it; `reward` is what is maximised."""

    sample: TrainingSample
    reward: float


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
    ) -> None:
        self.policy, self.config = policy, config
        self.algorithm = algorithm(config.algorithm)
        self._pack_tokens, self._horizon, self._seed = pack_tokens, horizon, seed
        self._reference = PolicyModel(copy.deepcopy(policy.model), policy.chat) if config.kl else None
        self._optimisation = Optimisation(
            policy.trainable,
            lr=config.lr,
            betas=config.betas,
            weight_decay=0.0,
            schedule=constant,
            grad_clip=config.grad_clip,
        )
        self._states = TrainerStates(states, policy.model, {**self._optimisation.parts, **(parts or {})})
        self.updates = self._states.resume()

    def save(self) -> None:
        """Write a state to go on from."""
        self._states.save(self.updates)

    def advantages(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        """One advantage for each rollout, (B,), float64; exactly 0 in groups without spread."""
        reward_B = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
        tokens_B = torch.tensor([int(rollout.sample.train_mask.sum()) for rollout in rollouts])
        if "overlong_penalty" in self.algorithm.needs:
            reward_B = reward_B + overlong_penalty(tokens_B, self._horizon, self._horizon // 4)
        group_B = group_ids([rollout.sample.group_id for rollout in rollouts])
        return self.algorithm.advantage(reward_B, group_B, tokens_B).numpy()

    def update(self, rollouts: Sequence[Rollout], advantage_B: np.ndarray) -> dict[str, float]:
        """`epochs` passes of `minibatches` optimiser steps; the mean of what they measured."""
        # By advantages, because a penalty may tell episodes of one reward apart.
        names_B = group_ids([rollout.sample.group_id for rollout in rollouts])
        groups = count_groups(torch.from_numpy(advantage_B), names_B)
        measured: list[dict[str, float]] = []
        for epoch in range(self.config.epochs):
            random = np.random.default_rng(derive_seed(self._seed, "minibatches", self.updates, epoch))
            minibatches = min(self.config.minibatches, len(rollouts))
            for part in np.array_split(random.permutation(len(rollouts)), minibatches):
                measured += self._step([rollouts[b] for b in part], advantage_B[part])
        self.updates += 1
        means = {name: float(np.mean([m[name] for m in measured])) for name in (measured[0] if measured else ())}
        return {
            **means,
            "reward": float(np.mean([rollout.reward for rollout in rollouts])),
            "mean_abs_advantage": float(np.abs(advantage_B).mean()),
            "informative_groups": groups.informative,
        }

    def _step(self, rollouts: Sequence[Rollout], advantage_B: np.ndarray) -> list[dict[str, float]]:
        """One optimiser step and what it measured; none where no row has anything to say.

        Rows of advantage 0 have no gradient: they count in the denominators, and are run only for KL or entropy.
        """
        lengths = [int(rollout.sample.train_mask.sum()) for rollout in rollouts]
        denominators = Denominators(tokens=sum(lengths), rows=len(rollouts), horizon=self._horizon)
        every = bool(self.config.kl or self.config.entropy)
        advantages = {
            id(rollout.sample): (rollout.sample, float(advantage))
            for rollout, advantage in zip(rollouts, advantage_B, strict=True)
            if every or advantage
        }
        totals: dict[str, float] = {}
        for part in rows_of([sample for sample, _ in advantages.values()], self._pack_tokens):
            metrics = self._row(part, np.array([advantages[id(sample)][1] for sample in part]), denominators)
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value
        if not totals:
            return []
        trained = totals.pop("trained")
        means = {name: v if name in ("loss", "tokens") else v / trained for name, v in totals.items()}
        return [{**means, **self._optimisation.step()}]

    def _row(
        self, samples: Sequence[TrainingSample], advantage_B: np.ndarray, denominators: Denominators
    ) -> dict[str, float]:
        """Forward and backward of one packed row; its figures, the means among them times its `trained` tokens."""
        chat = self.policy.chat
        row = pack(samples, image_id=chat.image_id, merge=chat.processor.image_processor.merge_size)
        loss, metrics = self._row_loss(row, advantage_B, denominators)
        self._optimisation.backward(loss)
        trained = metrics.pop("tokens")
        own = {"loss": metrics.pop("loss"), "tokens": float(row.tokens), "trained": trained}
        return {**own, **{name: trained * value for name, value in metrics.items()}}

    def _row_loss(
        self, row: PackedRow, advantage_B: np.ndarray, denominators: Denominators
    ) -> tuple[Tensor, dict[str, float]]:
        temperature = self.config.temperature
        if self.config.entropy:
            logp_K, entropy_K = self.policy.logprobs_and_entropy(row, temperature)
        else:
            logp_K, entropy_K = self.policy.logprobs(row, temperature), None
        grid = _Grid(row)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = grid.spread(self._reference.logprobs(row, temperature))
        return policy_loss(
            self.algorithm,
            grid.spread(logp_K),
            grid.spread(torch.from_numpy(row.logprobs_K).to(logp_K)),
            torch.from_numpy(advantage_B).to(logp_K),
            grid.mask_BT.to(logp_K.device),
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            ref_logp_BT=reference,
            kl=self.config.kl,
            entropy_BT=None if entropy_K is None else grid.spread(entropy_K),
            entropy=self.config.entropy,
            denominators=denominators,
        )


class _Grid:
    """The trained tokens of a packed row as a padded (B, T) table, one line a document."""

    def __init__(self, row: PackedRow) -> None:
        counts = np.bincount(row.document_K, minlength=len(row.samples))
        if (counts == 0).any():
            raise TrainingError("A trajectory without a trained token reached policy gradient; filter it out before.")
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        self._document_K = torch.from_numpy(row.document_K)
        self._column_K = torch.from_numpy(np.arange(len(row.document_K)) - starts)
        self._shape = (len(counts), int(counts.max()))
        self.mask_BT = torch.zeros(self._shape, dtype=torch.bool)
        self.mask_BT[self._document_K, self._column_K] = True

    def spread(self, value_K: Tensor) -> Tensor:
        out_BT = value_K.new_zeros(self._shape)
        return out_BT.index_put((self._document_K, self._column_K), value_K)
