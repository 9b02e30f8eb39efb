"""Supervised fine-tuning on whole trajectories, each tokenised once and packed.

    loss = sum(w_t * -log p(token_t)) / sum(w_t),  over the trained tokens of all rows of one step

The denominator is that of the whole step, so cutting a step into rows changes nothing. A row whose weights are all zero
contributes an exact zero.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch

from flywheel.errors import DataError
from flywheel.modeling.sending import sent
from flywheel.sections import Held, SftConfig
from flywheel.seeds import derive_seed
from flywheel.trainers.checkpoints import TrainerStates
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.optimisation import Optimisation, cosine
from flywheel.trainers.packing import PackedRow, rows_of, share_of
from flywheel.trainers.progress import Report
from flywheel.trainers.sharding import hold
from flywheel.types import TrainingSample


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a stage of supervised fine-tuning did. `loss` is the mean over the last tenth of its steps."""

    steps: int
    loss: float
    tokens: int
    tokens_per_second: float


def batches(count: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    """Endless batches of indices, one shuffled epoch after another; the order depends on the seed alone."""
    epoch, waiting = 0, np.empty(0, np.int64)
    while True:
        while len(waiting) < batch:
            order = np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(count)
            waiting, epoch = np.concatenate([waiting, order]), epoch + 1
        yield waiting[:batch]
        waiting = waiting[batch:]


def train_sft(
    policy: PolicyModel,
    samples: Sequence[TrainingSample],
    config: SftConfig,
    *,
    steps: int,
    seed: int,
    states: Path,
    report: Report,
) -> SftResult:
    """Train in place for `steps` optimiser steps in all, going on from the newest state under `states`.

    Under several processes each is given the same samples and takes its share of the rows.

    Raises `DataError` when no token is trained on, `PackingError` for a sample that cannot be, before the first step.
    """
    if not any(sample.weights.any() for sample in samples):
        raise DataError("The training set has no token to train on; check its filter and its turn masks.")
    for sample in samples:
        policy.check(sample)
    optimisation = Optimisation(
        policy.trainable,
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        schedule=cosine(steps, config.warmup, config.min_lr / config.lr),
        grad_clip=config.grad_clip,
    )
    saved = TrainerStates(states, policy.model, optimisation.parts)
    start = saved.resume()
    policy.model.train()
    plan = _plan(samples, config, seed, start, steps)
    losses, tokens, began = [], 0, time.perf_counter()
    for step, batch, coming in _with_next(plan, start):
        metrics = _step(policy, optimisation, batch, coming, config.held)
        losses.append(metrics["loss"])
        tokens += int(metrics["tokens"])
        rate = tokens / (time.perf_counter() - began)
        report.metrics(step + 1, {**metrics, "tokens_per_second": rate})
        report.advance(step + 1, steps, "steps")
        if config.save_every and (step + 1) % config.save_every == 0 and step + 1 < steps:
            saved.save(step + 1)
    tail = losses[-max(1, len(losses) // 10) :]
    rate = tokens / (time.perf_counter() - began)
    return SftResult(steps, float(np.mean(tail)) if tail else float("nan"), tokens, rate)


@dataclass(frozen=True, slots=True)
class Batch:
    """One optimiser step: the documents of each row, and the weight of all of them together."""

    rows: list[list[TrainingSample]]
    denominator: float

    @classmethod
    def of(cls, samples: Sequence[TrainingSample], pack_tokens: int) -> "Batch":
        weight = float(sum(sample.weights.sum() for sample in samples))
        return cls(list(rows_of(samples, pack_tokens)), max(weight, 1.0))

    @property
    def tokens(self) -> int:
        return sum(len(sample.input_ids) for row in self.rows for sample in row)


def _plan(samples: Sequence[TrainingSample], config: SftConfig, seed: int, start: int, steps: int) -> Iterator[Batch]:
    """The batches of steps `start` to `steps`."""
    for step, chosen in zip(range(steps), batches(len(samples), config.batch, seed), strict=False):
        if step >= start:
            yield Batch.of([samples[i] for i in chosen], config.pack_tokens)


def _with_next(plan: Iterator[Batch], start: int) -> Iterator[tuple[int, Batch, Batch | None]]:
    """Step number, its batch, and the batch after it."""
    batch = next(plan, None)
    for step in count(start):
        if batch is None:
            return
        coming = next(plan, None)
        yield step, batch, coming
        batch = coming


def _step(
    policy: PolicyModel, optimisation: Optimisation, batch: Batch, coming: Batch | None, held: Held
) -> dict[str, float]:
    """One optimiser step over this process's rows; while it computes, the screenshots of the next row are read.

    Losses are added up where they are computed: to look at each would have a GPU waited for.
    """
    rank, world = optimisation.rank, optimisation.world
    rows = share_of(batch.rows, rank, world)
    next_row = share_of(coming.rows, rank, world)[0] if coming else []
    total = torch.zeros((), device=policy.model.device)
    for number, (part, following) in enumerate(zip(rows, [*rows[1:], next_row], strict=True), 1):
        row = policy.pack(part)
        policy.expect(following)
        hold(policy.model, held, last=number == len(rows))
        loss = row_loss(policy, row, batch.denominator)
        optimisation.backward(loss * world)  # gradients of several processes are averaged
        total += loss.detach()
        policy.look_ahead(following)
    taken = optimisation.step()
    return {"loss": optimisation.total(total), "tokens": float(batch.tokens), **taken}


def row_loss(policy: PolicyModel, row: PackedRow, denominator: float) -> torch.Tensor:
    """This row's share of the step's loss."""
    logp_K = policy.logprobs(row)
    weights_K = sent(torch.from_numpy(row.weights_K), logp_K.device).to(logp_K.dtype)
    return -(weights_K * logp_K).sum() / denominator
