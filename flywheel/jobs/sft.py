"""Supervised fine-tuning of a policy on training sets."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flywheel.config import Config
from flywheel.datasets.sets import load_rows
from flywheel.jobs.base import Progress
from flywheel.jobs.threads import use_threads
from flywheel.modeling.policy import load_policy
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.documents import sample_of
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.sft import train_sft
from flywheel.types import PolicyRef


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: sets, init, out, version, steps, seed. Returns the policy and how training went."""
    started = time.perf_counter()
    use_threads(config)
    init, out = PolicyRef(**args["init"]), Path(args["out"])
    model, chat = load_policy(config, init)
    samples = [sample_of(row, chat) for folder in args["sets"] for row in load_rows(Path(folder))]
    turns = sum(int(sample.weights.sum()) for sample in samples)
    progress.log(f"{len(samples)} trajectories, {turns} tokens to train on, from {init.version}.")
    states = out.with_name(f"{out.name}.trainer")
    result = train_sft(
        PolicyModel(model, chat),
        samples,
        config.sft,
        steps=args["steps"],
        seed=args["seed"],
        states=states,
        report=progress,
    )
    policy = PolicyRef(args["version"], str(out), init.version, fingerprint(model.parameters()))
    save_policy(model, chat.processor, policy, out)
    progress.log(f"{policy.version}: loss {result.loss:.4f} after {result.steps} steps.")
    return {
        "policy": asdict(policy),
        **asdict(result),
        "trajectories": len(samples),
        "seconds": time.perf_counter() - started,
    }
