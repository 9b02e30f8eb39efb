"""Stages that make what the real ones make, in milliseconds: folders, a real store, real reports.

A checkpoint's "skill" is a number in its folder; every training adds to it, and episodes succeed with that share. The
folder `knobs` beside the workspace makes stages misbehave.
"""

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flywheel.config import Config
from flywheel.errors import CheckpointError
from flywheel.evaluation.report import EpisodeResult, summarise, to_json
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from flywheel.types import PolicyRef, Trajectory
from flywheel.workspace import write_policy


def knob(config: Config, name: str) -> str | None:
    file = config.home_path / "knobs" / name
    return file.read_text() if file.exists() else None


def note(config: Config, stage: str, args: dict[str, Any]) -> None:
    """Remember that a stage ran; wait or die here when a knob says so."""
    with (config.home_path / "ran.jsonl").open("a") as file:
        file.write(json.dumps({"stage": stage, **args}) + "\n")
    if knob(config, "hang") == stage:
        (config.home_path / "hanging").write_text(str(os.getpid()))
        time.sleep(600)


def make_policy(out: str, version: str, parent: PolicyRef | None, skill: float) -> dict[str, Any]:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "skill").write_text(str(skill))
    policy = PolicyRef(version, out, parent and parent.version, f"{version}-{skill:.3f}")
    write_policy(folder, policy)
    return asdict(policy)


def skill_of(policy: dict[str, Any]) -> float:
    file = Path(policy["uri"]) / "skill"
    if not file.exists():
        raise CheckpointError(f"{file} is corrupt; make the checkpoint again.")
    return float(file.read_text())


def publish(config: Config, args: dict[str, Any], policy: PolicyRef, skill: float, count: int) -> dict[str, Any]:
    """Publish and seal `count` episodes, `skill` of them solved."""
    store = TrajectoryStore(config.store_root, fsync=False)
    partition = args["partition"]
    attempt = store.begin(partition, config.experiment)
    solved = round(skill * count)
    played = [episode(config, policy, f"{partition}-{i}", i < solved) for i in range(count)]
    store.publish_many(played, partition=partition, attempt=attempt)
    store.seal(partition, attempt, count, config.experiment)
    results = [EpisodeResult(f"task-{i}", "click", 1, False, t.task_reward) for i, t in enumerate(played)]
    content = to_json(summarise(policy, "heldout", args["seed"], results))
    ids = {"success_id": played[0].id if solved else None, "failure_id": played[-1].id if solved < count else None}
    return {**content, "partition": partition, "attempt": attempt, **ids, "seconds": 0.01}


def episode(config: Config, policy: PolicyRef, name: str, solved: bool) -> Trajectory:
    made = random_trajectory(name, 2, (64, 48))
    return replace(
        made, policy=policy, task_reward=float(solved), experiment=config.experiment, outcome="completed", failure=None
    )
