"""Objectives: what one packed row adds to an optimiser step's loss.

The trainer (`rl.py`) owns the loop: minibatches, packing, backward, optimiser, states. An objective owns the
mathematics of a row. Most algorithms share `PolicyObjective`, a loss of the table on (ratio, advantage); one that
learns from something else than advantages brings its own, under the name that its row of the table gives.

Shapes: K trained tokens of a packed row, B its lines (documents, or their steps), T the longest of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from flywheel.sections import RlConfig
from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.algorithms import Algorithm
from flywheel.trainers.credit import Credit
from flywheel.trainers.grid import Grid
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import PackedRow
from flywheel.trainers.policy_loss import policy_loss
from flywheel.trainers.reference import Reference
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.self_distillation import SelfDistillation
from flywheel.trainers.webrl import webrl_loss


class Objective(Protocol):
    """The contract between the trainer and what it minimises.

    For each update the trainer calls `begin` once, then, for each optimiser step, `loss` on packed rows of those
    rollouts of the minibatch that `trains` lets through, then `end` once. Losses of a step are added up, so each must
    be divided by `denominators`, which count the whole step. Under several processes each is given every rollout, and
    its share of the rows; all pass as many.

    parts: name -> object with `state_dict` and `load_state_dict`, for what must survive in a trainer state.
    """

    parts: Mapping[str, Any]

    def adjust(self, config: RlConfig) -> None:
        """Go on with other clips and terms."""

    def move_reference(self) -> None:
        """Measure KL against the policy as it is now, from here on."""

    def begin(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> None:
        """The whole batch, before its first step; rollouts of one group share `sample.group_id`."""

    def trains(self, rollout: Rollout, credit: Credit) -> bool:
        """Whether a rollout has anything to say. One that has not costs no forward pass, and still counts in the
        denominators."""

    def loss(
        self, row: PackedRow, credits: Sequence[Credit], denominators: Denominators
    ) -> tuple[Tensor, dict[str, float]]:
        """The row's share of the step's loss, with gradient, and its figures.

        Args:
            row: documents side by side; `row.samples` are those of the rollouts, `row.document_K` says which token
                belongs to which.
            credits: one for each of `row.samples`.
            denominators: counts of the whole optimiser step, rollouts that do not train included.
        Returns: (scalar, figures). Figures hold `loss` (added up over rows), `tokens` (trained tokens of the row), and
            means over those tokens, by any name; every row of a step returns the same names.
        """

    def end(self) -> dict[str, float]:
        """After the last step of an update (a teacher follows its student here); figures of the update."""


class PolicyObjective:
    """The loss of the algorithm's row in the table, with KL to the policy of the start and entropy if asked for.

    Args:
        policy: the trained policy; the reference is a copy of what it is now.
        config: clips and terms.
        algorithm: row of the table.
        start: loads the policy that training started from.
    """

    def __init__(
        self, policy: PolicyModel, config: RlConfig, algorithm: Algorithm, start: Callable[[], PolicyModel]
    ) -> None:
        self._policy, self._config, self._algorithm = policy, config, algorithm
        self._reference = Reference(policy, start, needed=bool(config.kl))
        self.parts: Mapping[str, Any] = {"reference": self._reference}

    def adjust(self, config: RlConfig) -> None:
        self._config = config
        if config.kl:
            self._reference.begin()

    def move_reference(self) -> None:
        self._reference.move()

    def begin(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> None:
        """Nothing to prepare."""

    def trains(self, rollout: Rollout, credit: Credit) -> bool:
        """Rows of advantage 0 have no policy gradient, but KL and entropy."""
        return bool((credit.advantage_K * credit.kept_K).any() or self._config.kl or self._config.entropy)

    def loss(
        self, row: PackedRow, credits: Sequence[Credit], denominators: Denominators
    ) -> tuple[Tensor, dict[str, float]]:
        temperature = self._config.temperature
        if self._config.entropy:
            logp_K, entropy_K = self._policy.logprobs_and_entropy(row, temperature)
        else:
            logp_K, entropy_K = self._policy.logprobs(row, temperature), None
        grid = Grid(row, [one.step_K for one in credits] if self._algorithm.rows == "step" else None)
        reference_BT = None
        if self._config.kl:
            with torch.no_grad():
                reference_BT = grid.spread(self._reference.logprobs(row, temperature))
        return policy_loss(
            self._algorithm,
            grid.spread(logp_K),
            grid.join([one.old_logp_K for one in credits], logp_K),
            grid.join([one.advantage_K for one in credits], logp_K),
            grid.join([one.kept_K for one in credits], logp_K).bool(),
            clip_low=self._config.clip_low,
            clip_high=self._config.clip_high,
            ref_logp_BT=reference_BT,
            kl=self._config.kl,
            kl_estimator=self._config.kl_estimator,
            entropy_BT=None if entropy_K is None else grid.spread(entropy_K),
            entropy=self._config.entropy,
            weight_BT=grid.join([one.weight_K for one in credits], logp_K),
            denominators=denominators,
            row_tokens_B=grid.mask_BT.sum(-1).to(logp_K.device),
        )

    def end(self) -> dict[str, float]:
        return {}


class WebrlObjective:
    """`webrl.webrl_loss` on the steps of a row, against the policy of the start."""

    def __init__(
        self, policy: PolicyModel, config: RlConfig, algorithm: Algorithm, start: Callable[[], PolicyModel]
    ) -> None:
        self._policy, self._config = policy, config
        self._reference = Reference(policy, start, needed=True)
        self._positive_tokens = 0.0
        self.parts: Mapping[str, Any] = {"reference": self._reference}

    def adjust(self, config: RlConfig) -> None:
        """It has neither clips nor a KL term."""
        self._config = config

    def move_reference(self) -> None:
        self._reference.move()

    def begin(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> None:
        """Count the tokens of positive steps; an optimiser step holds one of `minibatches` parts of them on average."""
        positive = sum(int((one.advantage_K >= 0).sum()) for one in credits)
        self._positive_tokens = positive / min(self._config.minibatches, len(rollouts))

    def trains(self, rollout: Rollout, credit: Credit) -> bool:
        return bool((credit.advantage_K >= 0).any())

    def loss(
        self, row: PackedRow, credits: Sequence[Credit], denominators: Denominators
    ) -> tuple[Tensor, dict[str, float]]:
        temperature = self._config.temperature
        logp_K = self._policy.logprobs(row, temperature)
        with torch.no_grad():
            reference_K = self._reference.logprobs(row, temperature)
        grid = Grid(row, [one.step_K for one in credits])
        terms = webrl_loss(
            grid.spread(logp_K),
            grid.spread(reference_K),
            grid.mask_BT.to(logp_K.device),
            grid.join([one.advantage_K for one in credits], logp_K)[:, 0],
            positive_tokens=self._positive_tokens,
            rows=denominators.rows,
        )
        d_K = logp_K.detach() - torch.from_numpy(row.logprobs_K).to(logp_K)
        figures = {
            "loss": float(terms.loss.detach()),
            "tokens": float(len(logp_K)),
            "positive_steps": float((terms.sign_B > 0).float().mean()),
            "beta": float(terms.beta_B.mean()),
            "mean_abs_dlogp": float(d_K.abs().mean()),
            "approx_kl": float((d_K.exp() - d_K - 1).mean()),
        }
        return terms.loss, figures

    def end(self) -> dict[str, float]:
        return {}


OBJECTIVES: dict[str, Callable[[PolicyModel, RlConfig, Algorithm, Callable[[], PolicyModel]], Objective]] = {
    "policy": PolicyObjective,
    "self_distillation": SelfDistillation,
    "webrl": WebrlObjective,
}
"""By the names that rows of the table give."""
