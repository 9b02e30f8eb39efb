"""The policy that KL is measured against: that of the start, until it is moved."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flywheel.trainers.divergences import kl_estimate
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import PackedRow
from flywheel.trainers.sharding import load_whole, whole_state


class Reference:
    """Part of a trainer's state; while it is the policy of the start, that part is empty.

    Args:
        policy: the trained policy, as it is at the start.
        start: loads the policy that training started from.
        needed: keep a copy of it now. A model's memory is not spent before there is a KL term.
    """

    def __init__(self, policy: PolicyModel, start: Callable[[], PolicyModel], *, needed: bool) -> None:
        self._trained, self._start = policy, start
        self._held = policy.twin(start) if needed else None
        self._moved = False

    @property
    def ready(self) -> bool:
        return self._held is not None

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Of the trained tokens, (K,); only when it is ready."""
        assert self._held is not None
        return self._held.logprobs(row, temperature)

    def begin(self) -> None:
        """Be ready."""
        self._held = self._held or self._start()

    def move(self) -> None:
        """Be the trained policy as it is now."""
        self._held, self._moved = self._trained.twin(self._start), True

    def state_dict(self) -> dict[str, Any]:
        return whole_state(self._held.model) if self._moved and self._held else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            self.move()
            assert self._held is not None
            load_whole(state, self._held.model)


@torch.no_grad()
def drift(policy: PolicyModel, start: PolicyModel, row: PackedRow, temperature: float) -> float:
    """k3 (nats a token) of the policy to the one that training started from, on one row that it sampled itself."""
    logp_K, start_logp_K = (one.logprobs(row, temperature) for one in (policy, start))
    return float(kl_estimate(logp_K, start_logp_K, "k3").mean())
