"""Training tokens a second: whole trajectories packed, against one padded sequence a turn, in the same process.

    python benchmarks/training.py [--steps 20] [--threads 1]

Both ways train the tiny policy on the same demonstrations, batch by batch, with the same loss over the same answers.
The baseline does what most trainers do: every turn is a sample of its own with all that came before it as prompt,
padded to the longest of its batch, pixels and all through transformers' own forward pass; the vision tower is frozen
there too.
*Answers* are tokens that are learned from, *read* are tokens that went through the language model.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3VLForConditionalGeneration

from flywheel.chat import Chat
from flywheel.config import Config, load_config
from flywheel.datasets.sets import load_rows
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.jobs.base_model import offline_processor
from flywheel.jobs.demonstrations import build_demonstrations
from flywheel.modeling.build import build_model
from flywheel.modeling.policy import load_policy
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.documents import sample_of
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.sft import batches, train_sft
from flywheel.types import PolicyRef, Size, TrainingSample

BATCH = 16
SEQUENCES = 16
"""Sequences of the baseline that go through the model together; more of them pad more."""


class Silent:
    """A report that nobody reads."""

    def advance(self, done: int, total: int, unit: str) -> None: ...

    def metrics(self, step: int, values: Any) -> None: ...


@dataclass(frozen=True)
class Lessons:
    """An untrained policy on disk and in memory, and demonstrations as documents."""

    config: Config
    folder: Path
    model: Any
    chat: Chat
    documents: list[TrainingSample]


def prepare(folder: Path, threads: int, *, demonstrations: int = 96) -> Lessons:
    """Everything that both ways need, made before the clock runs."""
    torch.set_num_threads(threads)
    settings = [f"home={folder}", f"tasks.demonstrations={demonstrations}", f"sft.batch={BATCH}", "env.levels=[1,2]"]
    config = load_config("embedded", settings)
    screen = Size(config.env.width, config.env.height)
    tasks = generate_tasks(split="train", count=demonstrations, seed=0, screen=screen, levels=config.env.levels)
    build_demonstrations(config, tasks, folder / "demonstrations")
    processor = offline_processor(config.model.tiny.merges)
    model = build_model(processor.tokenizer, config.model.tiny, seed=0)
    save_policy(model, processor, PolicyRef("untrained", str(folder / "policy")), folder / "policy")
    model, chat = load_policy(config, PolicyRef("untrained", str(folder / "policy")))
    documents = [sample_of(row, chat) for row in load_rows(folder / "demonstrations")]
    return Lessons(config, folder, model, chat, documents)


def packed(lessons: Lessons, steps: int) -> tuple[int, int, float]:
    """Answers, tokens read, seconds."""
    policy = PolicyModel(lessons.model, lessons.chat)
    started = time.perf_counter()
    result = train_sft(
        policy,
        lessons.documents,
        lessons.config.sft,
        steps=steps,
        seed=0,
        states=lessons.folder / "states",
        report=Silent(),
    )
    return _answers(lessons, steps), result.tokens, time.perf_counter() - started


def _answers(lessons: Lessons, steps: int) -> int:
    order = batches(len(lessons.documents), BATCH, 0)
    return sum(int(lessons.documents[i].weights.sum()) for _ in range(steps) for i in next(order))


def per_turn(lessons: Lessons, steps: int) -> tuple[int, int, float]:
    """The same by the baseline."""
    policy = str(lessons.folder / "policy")
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(policy, dtype=torch.float32).train()
    model.model.visual.requires_grad_(False)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=lessons.config.sft.lr)
    order, answers, read = batches(len(lessons.documents), BATCH, 0), 0, 0
    started = time.perf_counter()
    for _ in range(steps):
        turns = [turn for i in next(order) for turn in _turns(lessons.documents[i])]
        count = sum(int(turn.weights.sum()) for turn in turns)
        for at in range(0, len(turns), SEQUENCES):
            inputs = _padded(turns[at : at + SEQUENCES], lessons.chat)
            labels = inputs.pop("labels")
            logits = model(**inputs).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / count
            loss.backward()
            read += inputs["input_ids"].numel()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        answers += count
    return answers, read, time.perf_counter() - started


def _turns(document: TrainingSample) -> Iterator[TrainingSample]:
    """One sample for each answer: all that came before it, and itself."""
    edges = np.flatnonzero(np.diff(document.train_mask.astype(int), append=0))
    starts, ends = edges[::2] + 1, edges[1::2] + 1
    for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        weights = np.zeros(end, np.float32)
        weights[start:] = 1
        yield replace(document, input_ids=document.input_ids[:end], weights=weights, images=document.images[:number])


def _padded(turns: Sequence[TrainingSample], chat: Chat) -> dict[str, torch.Tensor]:
    width = max(len(turn.input_ids) for turn in turns)
    ids_BT = torch.full((len(turns), width), chat.end_id)
    labels_BT = torch.full((len(turns), width), -100)
    mask_BT = torch.zeros((len(turns), width), dtype=torch.long)
    for b, turn in enumerate(turns):
        ids = torch.from_numpy(turn.input_ids)
        ids_BT[b, : len(ids)], mask_BT[b, : len(ids)] = ids, 1
        labels_BT[b, : len(ids)] = torch.where(torch.from_numpy(turn.weights) > 0, ids, -100)
    images = [shot.image() for turn in turns for shot in turn.images]
    pixels = chat.processor.image_processor(images, return_tensors="pt")
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "labels": labels_BT,
        "mm_token_type_ids": (ids_BT == chat.image_id).int(),
        "pixel_values": pixels["pixel_values"],
        "image_grid_thw": pixels["image_grid_thw"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps of each way")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lessons = prepare(Path(folder), arguments.threads)
        ways = {"flywheel: whole trajectories, packed": packed, "baseline: a padded sequence a turn": per_turn}
        print(f"{'':<40}{'answers/s':>12}{'read/s':>12}{'seconds':>10}")
        rates = []
        for name, way in ways.items():
            way(lessons, 2)
            answers, read, seconds = way(lessons, arguments.steps)
            rates.append(answers / seconds)
            print(f"{name:<40}{rates[-1]:>12,.0f}{read / seconds:>12,.0f}{seconds:>10.1f}")
        print(f"{rates[0] / rates[1]:.1f} times the baseline in answers learned from a second.")


if __name__ == "__main__":
    main()
