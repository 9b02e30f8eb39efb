"""Supervised fine-tuning on whole trajectories, each tokenised once and packed.

    loss = sum(w_t * -log p(token_t)) / sum(w_t),  over the trained tokens of all rows of one step

The denominator is that of the whole step, so cutting a step into rows changes nothing. A row whose weights are all zero
contributes an exact zero.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from flywheel.config import SftConfig
from flywheel.errors import DataError
from flywheel.seeds import derive_seed
from flywheel.trainers.checkpoints import TrainerStates
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.optimisation import Optimisation, cosine
from flywheel.trainers.packing import PackedRow, pack, rows_of
from flywheel.trainers.progress import Report
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

    Raises `DataError` when no token is trained on.
    """
    if not any(sample.weights.any() for sample in samples):
        raise DataError("The training set has no token to train on; check its filter and its turn masks.")
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
    order = batches(len(samples), config.batch, seed)
    losses, tokens, began = [], 0, time.perf_counter()
    for step in range(steps):
        chosen = [samples[i] for i in next(order)]
        if step < start:
            continue
        metrics = _step(policy, optimisation, chosen, config.pack_tokens)
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


def _step(
    policy: PolicyModel, optimisation: Optimisation, samples: Sequence[TrainingSample], pack_tokens: int
) -> dict[str, float]:
    """One optimiser step over as many rows as the batch needs."""
    image_id, merge = policy.chat.image_id, policy.chat.processor.image_processor.merge_size
    denominator = max(float(sum(sample.weights.sum() for sample in samples)), 1.0)
    total, tokens = 0.0, 0
    for part in rows_of(samples, pack_tokens):
        row = pack(part, image_id=image_id, merge=merge)
        loss = row_loss(policy, row, denominator)
        optimisation.backward(loss)
        total += float(loss.detach())
        tokens += row.tokens
    return {"loss": total, "tokens": float(tokens), **optimisation.step()}


def row_loss(policy: PolicyModel, row: PackedRow, denominator: float) -> torch.Tensor:
    """This row's share of the step's loss."""
    logp_K = policy.logprobs(row)
    weights_K = torch.from_numpy(row.weights_K).to(logp_K)
    return -(weights_K * logp_K).sum() / denominator
