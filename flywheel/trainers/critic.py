"""Critics: a linear head that says how a trajectory will end, from the policy's own hidden states.

Keeps: PPO's clipped value loss (`losses.value_loss`), pre-training with the policy frozen until the explained variance
is at least .3 and flat (VAPO arXiv:2504.05118, UI-TARS-2 arXiv:2509.02544), WebRL's two classifying heads, of which the
more doubtful one counts (arXiv:2411.02337). Drops: a backbone of the critic's own. The head reads hidden states without
sending a gradient into them, so that fitting it costs no pass through the model and cannot pull the policy.

Ours: a critic of values is also told what the task's other rollouts of the update got. How hard a task is decides most
of what becomes of an episode, and few tasks come twice: on the embedded profile (54 tasks of the three hardest
families, 8 episodes each) a ridge regression on hidden states alone explains nothing of the outcomes of tasks it has
not seen (-.09), on the others' mean alone .35, on both .36.

Legend: N positions (of all rollouts) whose state is read, D numbers of a state: the hidden state, for a critic of
values the others' mean reward too. A state predicts a trained token, so it knows everything before that token and not
the token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flywheel.sections import RlConfig
from flywheel.trainers.algorithms import CriticKind
from flywheel.trainers.losses import value_loss
from flywheel.trainers.webrl import critic_value

EXPLAINED, FLAT = 0.3, 0.05
"""Explained variance from which a critic is trusted, and the gain between two updates below which it is flat."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a critic learns from one rollout: states, what it said of them, and what it should have said."""

    state_ND: Tensor
    value_N: Tensor
    target_N: Tensor


class Critic(Protocol):
    """Read before an update, fitted by it."""

    def read(self, state_ND: Tensor) -> Tensor:
        """value_N, float32, without gradient."""

    def fit(self, lessons: Sequence[Lesson]) -> dict[str, float]:
        """Learn from an update's lessons; figures of it."""

    def trusted(self) -> bool:
        """Whether the policy may be trained on what it says."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class _Head:
    """A linear map from states, starting at zero, with an optimiser of its own."""

    def __init__(self, width: int, outputs: int, lr: float, device: torch.device) -> None:
        self.linear = nn.Linear(width, outputs, device=device)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self._optimizer = torch.optim.Adam(self.linear.parameters(), lr=lr)

    def __call__(self, state_ND: Tensor) -> Tensor:
        out: Tensor = self.linear(state_ND.float())
        return out

    def learn(self, loss_of: Callable[[], Tensor], steps: int) -> float:
        """`steps` full-batch steps; the last loss."""
        loss = torch.zeros(())
        for _ in range(steps):
            self._optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            self._optimizer.step()
        return float(loss.detach())

    def state_dict(self) -> dict[str, Any]:
        return {"linear": self.linear.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.linear.load_state_dict(state["linear"])
        self._optimizer.load_state_dict(state["optimizer"])


class ValueCritic:
    """Expected return from each token on. It starts as the last number of a state, the others' mean reward.

    Args:
        width: hidden size, and one.
        lr, steps: Adam's, and how many of its full-batch steps an update takes.
        pretraining: most updates in which the critic alone learns before the policy does; 0 trusts it at once.
    """

    def __init__(self, width: int, *, lr: float, steps: int, pretraining: int, device: torch.device) -> None:
        self._head = _Head(width, 1, lr, device)
        self._head.linear.weight.data[0, -1] = 1.0
        self._steps, self._pretraining = steps, pretraining
        self._explained: list[float] = []
        self._ready = pretraining == 0

    @torch.no_grad()
    def read(self, state_ND: Tensor) -> Tensor:
        return self._head(state_ND)[:, 0]

    def fit(self, lessons: Sequence[Lesson]) -> dict[str, float]:
        """Figures: `value_loss` after fitting, and `explained_variance` before it, on rollouts it has not seen."""
        state_ND, value_N, target_N = (torch.cat(parts) for parts in zip(*map(_parts, lessons), strict=True))
        explained = explained_variance(value_N, target_N)
        self._judge(explained)

        def loss() -> Tensor:
            # The clip keeps a critic that is relied upon from leaping; in pre-training nobody relies on it.
            clip = 0.5 if self._ready else None
            return value_loss(self._head(state_ND)[:, 0], target_N, value_N, clip)[0].mean()

        return {"value_loss": self._head.learn(loss, self._steps), "explained_variance": explained}

    def _judge(self, explained: float) -> None:
        flat = bool(self._explained) and explained - self._explained[-1] < FLAT
        self._explained.append(explained)
        self._ready = self._ready or (explained >= EXPLAINED and flat) or len(self._explained) > self._pretraining

    def trusted(self) -> bool:
        return self._ready

    def state_dict(self) -> dict[str, Any]:
        return {"head": self._head.state_dict(), "explained": list(self._explained), "ready": self._ready}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._head.load_state_dict(state["head"])
        self._explained, self._ready = list(state["explained"]), bool(state["ready"])


class VerdictCritic:
    """WebRL's: probability of success before each step, the lower of two heads'. Lessons' targets are 0 or 1."""

    def __init__(self, width: int, *, lr: float, steps: int, device: torch.device) -> None:
        self._head = _Head(width, 4, lr, device)
        # Two heads that start alike stay alike; these start with opposite doubts.
        self._head.linear.bias.data = torch.tensor([0.1, -0.1, -0.1, 0.1], device=device)
        self._steps = steps

    @torch.no_grad()
    def read(self, state_ND: Tensor) -> Tensor:
        logits_N4 = self._head(state_ND)
        return critic_value(logits_N4[:, :2], logits_N4[:, 2:])

    def fit(self, lessons: Sequence[Lesson]) -> dict[str, float]:
        """Figures: `value_loss` after fitting, and `value_accuracy` before it."""
        state_ND, value_N, target_N = (torch.cat(parts) for parts in zip(*map(_parts, lessons), strict=True))
        accuracy = float(((value_N > 0.5) == (target_N > 0.5)).float().mean())

        def loss() -> Tensor:
            logits_N4 = self._head(state_ND)
            return cross_entropy(logits_N4[:, :2], target_N.long()) + cross_entropy(logits_N4[:, 2:], target_N.long())

        return {"value_loss": self._head.learn(loss, self._steps), "value_accuracy": accuracy}

    def trusted(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        return self._head.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._head.load_state_dict(state)


def make_critic(kind: CriticKind, width: int, config: RlConfig, device: torch.device) -> Critic:
    """The critic that a row of the table names, for hidden states of this width."""
    if kind == "verdict":
        return VerdictCritic(width, lr=config.critic_lr, steps=config.critic_steps, device=device)
    pretraining = config.value_pretraining if kind == "pretrained value" else 0
    return ValueCritic(
        width + 1, lr=config.critic_lr, steps=config.critic_steps, pretraining=pretraining, device=device
    )


def explained_variance(value_N: Tensor, target_N: Tensor) -> float:
    """1 - Var(target - value) / Var(target); 0 where all targets are equal."""
    variance = target_N.var(correction=0)
    return float(1 - (target_N - value_N).var(correction=0) / variance) if float(variance) > 1e-8 else 0.0


def _parts(lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
    return lesson.state_ND, lesson.value_N, lesson.target_N
