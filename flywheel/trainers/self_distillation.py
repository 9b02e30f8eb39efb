"""SDPO, self-distillation policy optimisation: the student learns from itself as it would answer with hindsight.

    L = agg( w D(student(. | prompt) || teacher(. | prompt, hindsight)) ),   w = sg(min(exp(logp - old), clip))

over the response tokens of every row that has hindsight (`hindsight.py`); the others are masked and counted. The
divergence is that of `distillation.py`. Advantages are not used. Keeps: EMA teacher or trust-region mix, no gradient to
the teacher, token mean. Drops: nothing of the objective; denominators count masked rows too, as everywhere here.

Ours: reading practice. SDPO rests on in-context learning, which a model too small or too fresh does not have: hindsight
then only disturbs it, and the student would be taught the disturbance. With `reading` above 0 the student also learns
the likelihood of successes given a sibling's solution, the first `reading_updates` updates nothing else.

Shapes: B rows, T the longest, K trained tokens of a packed row, V vocabulary. Source: arXiv:2601.20802.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.config import RlConfig, SdpoConfig
from flywheel.errors import TrainingError
from flywheel.trainers.aggregation import Denominators, aggregate, masked_mean
from flywheel.trainers.algorithms import Algorithm
from flywheel.trainers.credit import Credit, Rollout
from flywheel.trainers.distillation import distillation_loss, ema, importance_clip
from flywheel.trainers.divergences import kl_estimate
from flywheel.trainers.grid import Grid
from flywheel.trainers.hindsight import Hindsight, hindsight_of, with_hindsight
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import PackedRow, pack
from flywheel.types import TrainingSample

KINDS = ("solution", "feedback", "masked")
"""What a row's teacher may be told, as the figures of an update count it."""


class SelfTeacher:
    """The student's slower self.

    `ema`: weights (1 - rate) own + rate student, taken in after every update; kept in float32, as bfloat16 would round
    small steps away. `trust_region`: the policy of the start, its logprobs mixed with the student's, (1 - rate) own +
    rate student, both given hindsight.
    """

    def __init__(self, student: PolicyModel, config: SdpoConfig) -> None:
        self._student, self._config = student, config
        self._own = student.twin()
        trained = {name for name, parameter in student.model.named_parameters() if parameter.requires_grad}
        self._weights = {name: p for name, p in self._own.model.named_parameters() if name in trained}
        self._average = {name: weight.float() for name, weight in self._weights.items()}

    @torch.no_grad()
    def distribution(self, row: PackedRow, temperature: float) -> Tensor:
        """Log-probabilities (nats) at the trained tokens, (K, V)."""
        own_KV = self._own.distribution(row, temperature)
        if self._config.teacher == "ema":
            return own_KV
        student_KV, rate = self._student.distribution(row, temperature), self._config.teacher_rate
        return ((1 - rate) * own_KV + rate * student_KV).log_softmax(-1)

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Take in the student's present weights. A trust region stays where it was."""
        if self._config.teacher != "ema":
            return
        student = dict(self._student.model.named_parameters())
        for name, average in self._average.items():
            average.copy_(ema(average, student[name].float(), rate))
            self._weights[name].copy_(average)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._average) if self._config.teacher == "ema" else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, average in state.items():
                self._average[name].copy_(average)
                self._weights[name].copy_(average)


class SelfDistillation:
    """The objective of `rl.algorithm: sdpo` (see `objectives.Objective`).

    Args:
        policy: the student.
        config: temperature, and what `rl.sdpo` says.
        algorithm: its row of the table, for the aggregation.
    """

    def __init__(self, policy: PolicyModel, config: RlConfig, algorithm: Algorithm) -> None:
        self._policy, self._config, self._algorithm = policy, config, algorithm
        self._teacher = SelfTeacher(policy, config.sdpo)
        self._updates = 0
        self._conditioned: dict[int, TrainingSample] = {}
        self._lessons: set[int] = set()
        self._counts: Counter[str] = Counter()
        self.parts: Mapping[str, Any] = {"self_distillation": self}

    def adjust(self, config: RlConfig, start: Callable[[], PolicyModel]) -> None:
        """Clips and KL of the policy gradient have no part here."""
        self._config = config

    def move_reference(self) -> None:
        """Nothing: the teacher follows as it is configured to."""

    def begin(self, rollouts: Sequence[Rollout], credits: Sequence[Credit]) -> None:
        """Give every rollout its hindsight."""
        sdpo, chat = self._config.sdpo, self._policy.chat
        played = [rollout.trajectory for rollout in rollouts]
        told = hindsight_of(played, chat, feedback=sdpo.feedback, accessibility_chars=sdpo.feedback_chars)
        pairs = [(rollout, hindsight) for rollout, hindsight in zip(rollouts, told, strict=True) if hindsight]
        self._conditioned = {id(rollout.sample): with_hindsight(rollout.sample, h, chat) for rollout, h in pairs}
        self._lessons = {id(rollout.sample) for rollout, _ in pairs if rollout.trajectory.success}
        self._counts = Counter(map(_kind, told))

    def trains(self, rollout: Rollout, credit: Credit) -> bool:
        """Rows without hindsight are masked."""
        return id(rollout.sample) in self._conditioned

    def loss(
        self, row: PackedRow, credits: Sequence[Credit], denominators: Denominators
    ) -> tuple[Tensor, dict[str, float]]:
        """Raises `TrainingError` when teacher and student would not judge the same tokens."""
        loss, figures = self._distilled(row, credits, denominators)
        if self._only_reading:
            loss = loss * 0.0
        lessons = [self._conditioned[id(sample)] for sample in row.samples if id(sample) in self._lessons]
        if self._config.sdpo.reading and lessons:
            loss = loss + self._config.sdpo.reading * self._read(lessons, denominators)
        return loss, {"loss": float(loss.detach()), **figures}

    def end(self) -> dict[str, float]:
        """The teacher follows, at once while it has not begun to teach; shares of rows by their hindsight."""
        self._teacher.follow(1.0 if self._only_reading else self._config.sdpo.teacher_rate)
        self._updates += 1
        return {f"hindsight_{kind}": self._counts[kind] / self._counts.total() for kind in KINDS}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "teacher": self._teacher.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates = int(state["updates"])
        self._teacher.load_state_dict(state["teacher"])

    @property
    def _only_reading(self) -> bool:
        return self._updates < self._config.sdpo.reading_updates

    def _distilled(
        self, row: PackedRow, credits: Sequence[Credit], denominators: Denominators
    ) -> tuple[Tensor, dict[str, float]]:
        sdpo, temperature, chat = self._config.sdpo, self._config.temperature, self._policy.chat
        told = self._pack([self._conditioned[id(sample)] for sample in row.samples])
        if not np.array_equal(told.targets_K, row.targets_K):
            raise TrainingError("Hindsight has changed the answers that it was put before.")
        student_KV = self._policy.distribution(row, temperature)
        teacher_KV = self._teacher.distribution(told, temperature)
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
        return aggregate(loss_BT, mask_BT, self._algorithm.aggregation, denominators), {
            "tokens": float(len(row.targets_K)),
            **figures,
        }

    def _read(self, lessons: Sequence[TrainingSample], denominators: Denominators) -> Tensor:
        """-log-likelihood of successes given a sibling's solution, aggregated as the divergence is."""
        row = self._pack(lessons)
        grid = Grid(row)
        nll_BT = grid.spread(-self._policy.logprobs(row, self._config.temperature))
        return aggregate(nll_BT, grid.mask_BT.to(nll_BT.device), self._algorithm.aggregation, denominators)

    def _pack(self, samples: Sequence[TrainingSample]) -> PackedRow:
        chat = self._policy.chat
        return pack(samples, image_id=chat.image_id, merge=chat.processor.image_processor.merge_size)


def _kind(told: Hindsight | None) -> str:
    return "masked" if told is None else told.kind
