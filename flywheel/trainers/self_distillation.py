"""SDPO, self-distillation policy optimisation: the student learns from itself as it would answer with hindsight.

    L = agg( w D(student(. | prompt) || teacher(. | prompt, hindsight)) ),   w = sg(min(exp(logp - old), clip))

over the response tokens of every row that has hindsight (`hindsight.py`); the others are masked and counted. The
divergence is that of `distillation.py`. Advantages are not used. Keeps: EMA teacher or trust-region mix, no gradient to
the teacher, token mean. Drops: nothing of the objective; denominators count masked rows too, as everywhere here.

Shapes: B rows, T the longest, K trained tokens of a packed row, V vocabulary. Source: arXiv:2601.20802.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.errors import TrainingError
from flywheel.sections import RlConfig
from flywheel.trainers.aggregation import Denominators, aggregate, masked_mean
from flywheel.trainers.algorithms import Algorithm
from flywheel.trainers.credit import Credit
from flywheel.trainers.distillation import distillation_loss, importance_clip
from flywheel.trainers.divergences import kl_estimate
from flywheel.trainers.grid import Grid
from flywheel.trainers.hindsight import Hindsight, hindsight_of, with_hindsight
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import PackedRow
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.self_teacher import SelfTeacher
from flywheel.types import TrainingSample

KINDS = ("solution", "feedback", "masked")
"""What a row's teacher may be told, as the figures of an update count it."""


class SelfDistillation:
    """The objective of `rl.algorithm: sdpo` (see `objectives.Objective`).

    Args:
        policy: the student.
        config: temperature, and what `rl.sdpo` says.
        algorithm: its row of the table, for the aggregation.
        start: loads the policy that training started from.
    """

    def __init__(
        self, policy: PolicyModel, config: RlConfig, algorithm: Algorithm, start: Callable[[], PolicyModel]
    ) -> None:
        self._policy, self._config, self._algorithm = policy, config, algorithm
        self._teacher = SelfTeacher(policy, config, start)
        self._updates = 0
        self._conditioned: dict[int, TrainingSample] = {}
        self._counts: Counter[str] = Counter()
        self.parts: Mapping[str, Any] = {"self_distillation": self}

    def adjust(self, config: RlConfig) -> None:
        """Clips and KL of the policy gradient have no part here."""
        self._config = config

    def move_reference(self) -> None:
        """Nothing: the teacher follows as it is configured to."""

    def begin(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> None:
        """Give every rollout its hindsight, and let the teacher practise reading it."""
        sdpo, chat = self._config.sdpo, self._policy.chat
        played = [rollout.trajectory for rollout in rollouts]
        told = hindsight_of(played, chat, feedback=sdpo.feedback, accessibility_chars=sdpo.feedback_chars)
        pairs = [(rollout, hindsight) for rollout, hindsight in zip(rollouts, told, strict=True) if hindsight]
        self._conditioned = {id(rollout.sample): with_hindsight(rollout.sample, h, chat) for rollout, h in pairs}
        self._counts = Counter(map(_kind, told))
        self._teacher.practise([self._conditioned[id(r.sample)] for r, _ in pairs if r.trajectory.success])

    def trains(self, rollout: Rollout, credit: Credit) -> bool:
        """Rows without hindsight are masked; all are, until the teacher teaches."""
        return id(rollout.sample) in self._conditioned and self._updates >= self._config.sdpo.reading_updates

    def loss(
        self, row: PackedRow, credits: Sequence[Credit], denominators: Denominators
    ) -> tuple[Tensor, dict[str, float]]:
        """Raises `TrainingError` when teacher and student would not judge the same tokens."""
        sdpo, temperature, chat = self._config.sdpo, self._config.temperature, self._policy.chat
        told = self._policy.pack([self._conditioned[id(sample)] for sample in row.samples])
        if not np.array_equal(told.targets_K, row.targets_K):
            raise TrainingError("Hindsight has changed the answers that it was put before.")
        student_KV = self._policy.distribution(row, temperature)
        teacher_KV = self._teacher.distribution(told)
        # A forbidden id has log-probability -inf, which must not be among the compared.
        k = min(sdpo.top_k, student_KV.shape[-1] - len(chat.forbidden_ids))
        grid, targets_K1 = Grid(row), torch.from_numpy(row.targets_K).to(student_KV.device)[:, None]
        logp_BT, teacher_BT = (grid.spread(x.gather(1, targets_K1)[:, 0]) for x in (student_KV, teacher_KV))
        old_BT = grid.join([credit.old_logp_K for credit in credits], logp_BT)
        distance_BT = grid.spread(distillation_loss(student_KV, teacher_KV, alpha=sdpo.alpha, k=k))
        loss_BT = distance_BT * importance_clip(logp_BT, old_BT, sdpo.importance_clip)
        mask_BT = grid.mask_BT.to(logp_BT.device)
        means = {
            "divergence": distance_BT,
            "hindsight_gain": teacher_BT - logp_BT,
            "approx_kl": kl_estimate(old_BT, logp_BT, "k3", limit=None),
        }
        figures = {name: float(masked_mean(x_BT.detach(), mask_BT)) for name, x_BT in means.items()}
        loss = aggregate(loss_BT, mask_BT, self._algorithm.aggregation, denominators)
        return loss, {"loss": float(loss.detach()), "tokens": float(len(row.targets_K)), **figures}

    def end(self) -> dict[str, float]:
        """The teacher follows; shares of rows by their hindsight."""
        self._teacher.follow()
        self._updates += 1
        return {f"hindsight_{kind}": self._counts[kind] / self._counts.total() for kind in KINDS}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "teacher": self._teacher.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates = int(state["updates"])
        self._teacher.load_state_dict(state["teacher"])


def _kind(told: Hindsight | None) -> str:
    return "masked" if told is None else told.kind
