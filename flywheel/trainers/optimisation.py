"""Optimiser, schedule, clipping and the steps that must not be taken: shared by every trainer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from flywheel.errors import TrainingError
from flywheel.trainers.gradients import GradientWatch

SKIPS_IN_A_ROW = 3


def cosine(steps: int, warmup: float, floor: float) -> Callable[[int], float]:
    """Learning rate factor: linear warm-up over `warmup * steps`, then a cosine from 1 down to `floor`."""
    rising = max(1, round(steps * warmup))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        progress = min(1.0, (step - rising) / max(1, steps - rising))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def constant(_: int) -> float:
    """Learning rate factor of policy gradient."""
    return 1.0


class Optimisation:
    """AdamW with a schedule. `step` clips, and leaves out updates whose gradient is not finite.

    Args:
        parameters: what is trained.
        lr: peak learning rate.
        schedule: step -> factor on `lr`.
        grad_clip: limit of the gradient's 2-norm.
        watch: decides which steps are taken; without it all whose gradient is finite.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        schedule: Callable[[int], float],
        grad_clip: float,
        watch: GradientWatch | None = None,
    ) -> None:
        self._watch = watch
        self._accelerator = Accelerator()
        self._parameters = parameters
        self._grad_clip = grad_clip
        on_gpu = parameters[0].device.type == "cuda"
        self.optimizer: Any = self._accelerator.prepare(
            torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=weight_decay, fused=on_gpu or None)
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer.optimizer, schedule)
        self._peaks = list(self.scheduler.base_lrs)
        self._skipped = 0

    @property
    def rank(self) -> int:
        """Number of this process among those that train together."""
        return int(self._accelerator.process_index)

    @property
    def world(self) -> int:
        return int(self._accelerator.num_processes)

    def total(self, value: Tensor) -> float:
        """A scalar summed over the processes."""
        return float(self._accelerator.reduce(value, "sum"))

    @property
    def parts(self) -> dict[str, Any]:
        """What a trainer state saves."""
        return {"optimizer": self.optimizer.optimizer, "scheduler": self.scheduler}

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def scale_lr(self, factor: float) -> None:
        """Go on at `factor` times the learning rate that this was made with."""
        self.scheduler.base_lrs = [peak * factor for peak in self._peaks]
        shapes = [shape(self.scheduler.last_epoch) for shape in self.scheduler.lr_lambdas]
        for group, base, shape in zip(self.optimizer.param_groups, self.scheduler.base_lrs, shapes, strict=True):
            group["lr"] = base * shape

    def step(self) -> dict[str, float]:
        """Clip and update.

        Raises `TrainingError` after `SKIPS_IN_A_ROW` gradients in a row that are not finite, unless a watch decides.
        """
        lr = float(self.optimizer.param_groups[0]["lr"])
        norm = _whole(self._accelerator.clip_grad_norm_(self._parameters, self._grad_clip))
        if self._watch.admit(norm) if self._watch else math.isfinite(norm):
            self._skipped = 0
            self.optimizer.step()
        else:
            self._skipped += 1
            if self._skipped == SKIPS_IN_A_ROW and self._watch is None:
                raise TrainingError(
                    f"{self._skipped} gradients in a row were not finite; lower the learning rate ({lr})."
                )
        self.optimizer.zero_grad()
        self.scheduler.step()
        return {"grad_norm": norm, "lr": lr, "skipped": float(self._skipped > 0)}


def _whole(norm: Tensor) -> float:
    """The norm of sharded gradients is sharded itself."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
