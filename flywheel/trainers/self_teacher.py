"""The teacher of self-distillation: the student's slower self, and its practice at reading hindsight.

    ema            weights (1 - rate) own + rate student, taken in after every update
    trust_region   the policy of the start; its logprobs (1 - rate) own + rate student, both given hindsight

Ours: reading practice. SDPO rests on in-context learning, which a model too small or too fresh does not have: hindsight
then only disturbs it, and the student would be taught the disturbance. With `reading_steps` the teacher practises,
before it teaches an update, on that update's successes given a sibling's solution, by their likelihood. The student is
left out of this: practising in its place, it lost 40% of its success in one update. What practice gives: after 32
steps, where a failure left a solution's path, a tiny teacher gives the solution's next token 0.47 with hindsight and
0.36 without. A policy whose fine-tuning held reading lessons (`reading.py`) reads better than that, and needs no
practice.

Shapes: K trained tokens of a packed row, V vocabulary. Source: arXiv:2601.20802.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flywheel.sections import RlConfig
from flywheel.trainers.distillation import ema
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.optimisation import Optimisation, constant
from flywheel.trainers.packing import PackedRow, dealt, rows_of
from flywheel.trainers.sharding import load_part, share_like, whole
from flywheel.types import TrainingSample

READING_TOKENS = 8192
"""Tokens of a packed row of lessons."""


class SelfTeacher:
    """No gradient of the student's loss reaches it.

    Args:
        student: whose start it shares.
        config: temperature, learning rate and clipping of its practice, and `sdpo`.
        start: loads the policy that training started from.
    """

    def __init__(self, student: PolicyModel, config: RlConfig, start: Callable[[], PolicyModel]) -> None:
        self._student, self._config = student, config
        self._own = student.twin(start)
        trained = {name for name, parameter in student.model.named_parameters() if parameter.requires_grad}
        self._weights = {name: p for name, p in self._own.model.named_parameters() if name in trained}
        # In float32, as bfloat16 would round an average's small steps away; where weights are float32, the very same.
        self._average = {name: weight.detach().float() for name, weight in self._weights.items()}
        self._practice = self._optimisation() if config.sdpo.reading_steps else None

    @torch.no_grad()
    def distribution(self, row: PackedRow) -> Tensor:
        """Log-probabilities (nats) at the trained tokens, (K, V)."""
        sdpo, temperature = self._config.sdpo, self._config.temperature
        own_KV = self._own.distribution(row, temperature)
        if sdpo.teacher == "ema":
            return own_KV
        student_KV = self._student.distribution(row, temperature)
        return ((1 - sdpo.teacher_rate) * own_KV + sdpo.teacher_rate * student_KV).log_softmax(-1)

    def practise(self, lessons: Sequence[TrainingSample]) -> None:
        """`reading_steps` steps, each on its part of the lessons: successes that hindsight should make likelier."""
        if self._practice is None:
            return
        for part in range(min(self._config.sdpo.reading_steps, len(lessons))):
            own = lessons[part :: self._config.sdpo.reading_steps]
            tokens = sum(int(lesson.train_mask.sum()) for lesson in own)
            rank, world = self._practice.rank, self._practice.world
            for documents, counts in dealt(list(rows_of(own, READING_TOKENS)), rank, world):
                logp_K = self._own.logprobs(self._own.pack(documents), self._config.temperature)
                self._practice.backward(-logp_K.sum() / tokens * (world if counts else 0))
            self._practice.step()
        with torch.no_grad():
            for name, weight in self._weights.items():
                self._average[name].copy_(weight)

    @torch.no_grad()
    def follow(self) -> None:
        """Take in the student's present weights; a trust region stays where it was."""
        if self._config.sdpo.teacher != "ema":
            return
        student = dict(self._student.model.named_parameters())
        for name, average in self._average.items():
            average.copy_(ema(average, student[name].float(), self._config.sdpo.teacher_rate))
            self._weights[name].copy_(average)

    def state_dict(self) -> dict[str, Any]:
        """A trust region that never practised is the policy of the start, and need not be kept."""
        parts = self._practice.parts if self._practice else {}
        kept = self._config.sdpo.teacher == "ema" or self._practice is not None
        return {
            "average": whole(self._average) if kept else {},
            "practice": {name: whole(part.state_dict()) for name, part in parts.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, average in state["average"].items():
                self._average[name].copy_(share_like(average, self._average[name]))
                self._weights[name].copy_(self._average[name])
        for name, part in state["practice"].items():
            if self._practice is not None:
                load_part(part, self._own.model, self._practice.parts[name])

    def _optimisation(self) -> Optimisation:
        for weight in self._weights.values():
            weight.requires_grad_(True)
        return Optimisation(
            list(self._weights.values()),  # type: ignore[arg-type]
            lr=self._config.lr,
            betas=self._config.betas,
            weight_decay=0.0,
            schedule=constant,
            grad_clip=self._config.grad_clip,
        )
