"""Which settings decide an asset: their hash is its code version, so that a changed knob shows as stale in the UI.

Settings that only change how fast the same thing is made are left out.
"""

import hashlib
import json
from typing import Any

import dagster as dg

from flywheel.config import Config

TASKS = ("seed", "env", "tasks")
MODEL = ("experiment", "seed", "env", "prompt", "model")
TRAINING = (*MODEL, "sft")
SETTINGS: dict[str, tuple[str, ...]] = {
    "tasks": TASKS,
    "demonstrations": (*TASKS, "prompt"),
    "base_model": MODEL,
    "sft_checkpoint": TRAINING,
    "sft_eval_report": (*MODEL, "eval"),
    "trajectories": (*MODEL, "rollout"),
    "sft_set": (
        *("experiment", "seed", "flywheel.success_threshold"),
        *("flywheel.pool", "flywheel.demonstrations", "flywheel.per_task"),
    ),
    "checkpoint": (*TRAINING, "flywheel.steps", "flywheel.init"),
    "eval_report": (*MODEL, "eval"),
    "control_checkpoint": (*TRAINING, "flywheel.steps", "flywheel.init"),
    "control_eval_report": (*MODEL, "eval"),
    "grpo_checkpoint": (*MODEL, "rl", "eval.temperature", "eval.max_turns"),
    "grpo_eval_report": (*MODEL, "eval"),
    "nightly_eval_report": (*MODEL, "eval"),
}
SPEED_ONLY = frozenset({"model.threads", "rollout.workers", "sft.save_every", "rl.save_every", "eval.retries"})


def code_version(config: Config, asset: str) -> str:
    """Twelve hex digits that change with any setting that decides the asset."""
    decisive = {name: value for name, value in _leaves(config.model_dump()).items() if _decides(name, SETTINGS[asset])}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def with_code_version(config: Config, spec: dg.AssetSpec) -> dg.AssetSpec:
    """The spec with its code version; external assets have none."""
    name = spec.key.to_user_string()
    return spec.replace_attributes(code_version=code_version(config, name)) if name in SETTINGS else spec


def _decides(name: str, settings: tuple[str, ...]) -> bool:
    return name not in SPEED_ONLY and any(name == one or name.startswith(f"{one}.") for one in settings)


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves
