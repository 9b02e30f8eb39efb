"""Does a checkpoint load? The answer a training run owes before anything is built on it."""

import time
from typing import Any

from flywheel.config import Config
from flywheel.errors import CheckpointError
from flywheel.jobs.base import Progress
from flywheel.modeling.policy import load_policy
from flywheel.trainers.model import fingerprint
from flywheel.types import PolicyRef


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: policy. Raises `PolicyError`, or `CheckpointError` when the weights are not those that were saved."""
    started = time.perf_counter()
    policy = PolicyRef(**args["policy"])
    model, _ = load_policy(config, policy)
    found = fingerprint(model.parameters())
    if policy.fingerprint and found != policy.fingerprint:
        raise CheckpointError(
            f"The weights in {policy.uri} are not those that were saved as {policy.version}; make the checkpoint again."
        )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    progress.log(f"{policy.version} loads: {parameters:,} parameters.")
    return {"policy": policy.version, "parameters": parameters, "seconds": time.perf_counter() - started}
