"""Supervised fine-tuning of a policy on training sets."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from flywheel.config import Config
from flywheel.datasets.sets import load_rows
from flywheel.jobs.base import Progress
from flywheel.jobs.general import general_samples
from flywheel.jobs.threads import use_threads
from flywheel.modeling.policy import device, load_policy
from flywheel.trainers.checkpoints import forget_states, save_policy, states_folder
from flywheel.trainers.documents import sample_of
from flywheel.trainers.model import fingerprint
from flywheel.trainers.reading import reading_lessons
from flywheel.trainers.sft import train_sft
from flywheel.trainers.sharding import gathered, is_sharded
from flywheel.trainers.tuning import merge_adapters, tuned
from flywheel.types import PolicyRef, TrainingSample


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: sets, init, out, version, steps, seed. Returns the policy and how training went."""
    started = time.perf_counter()
    use_threads(config)
    processes = PartialState(cpu=device(config) == "cpu")
    init, out = PolicyRef(**args["init"]), Path(args["out"])
    model, chat = load_policy(config, init)
    samples = [sample_of(row, chat) for folder in args["sets"] for row in load_rows(Path(folder))]
    lessons = reading_lessons(samples, chat, share=config.sft.reading, seed=args["seed"])
    samples += [*general_samples(config.sft, chat, len(samples), args["seed"]), *lessons]
    trained = sum(int(sample.weights.sum()) for sample in samples)
    progress.log(f"{len(samples)} trajectories, {trained} tokens to train on, from {init.version}.")
    decides = [
        config.sft.model_dump(exclude={"save_every", "processes"}),
        config.model.model_dump(include={"dtype", "vision", "lora_rank", "lora_alpha"}),
        *(args["steps"], args["seed"], args["init"], _digest(samples)),
    ]
    result = train_sft(
        tuned(model, chat, config.model),
        samples,
        config.sft,
        steps=args["steps"],
        seed=args["seed"],
        states=states_folder(out, *decides),
        report=progress,
    )
    merge_adapters(model)
    weights = gathered(model, getattr(torch, config.model.dtype)) if is_sharded(model) else None
    policy = PolicyRef(args["version"], str(out), init.version)
    if processes.is_main_process:
        policy = replace(policy, fingerprint=fingerprint(weights.values() if weights else model.parameters()))
        save_policy(model, chat.processor, policy, out, weights)
        forget_states(out)
    processes.wait_for_everyone()
    progress.log(f"{policy.version}: loss {result.loss:.4f} after {result.steps} steps.")
    return {
        "policy": asdict(policy),
        **asdict(result),
        "trajectories": len(samples),
        "seconds": time.perf_counter() - started,
    }


def _digest(samples: Sequence[TrainingSample]) -> str:
    """What is trained on, in a hash: another set must not go on from this one's states."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.input_ids.tobytes() + sample.weights.tobytes())
    return digest.hexdigest()
