"""Demonstrations: the oracle plays, and what it said becomes a training set. Light: no model is loaded."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.chat import make_words
from flywheel.config import Config
from flywheel.datasets.sets import row_of, save_set
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError
from flywheel.jobs.base import Progress
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.rollout.groups import plan, play
from flywheel.types import Size, Task, Trajectory


def build_demonstrations(config: Config, tasks: Sequence[Task], folder: Path) -> dict[str, Any]:
    """Play `tasks.demonstrations` tasks and save them. Raises `DataError` when the oracle fails at one."""
    words = make_words(config)
    chosen = list(tasks)[: config.tasks.demonstrations]
    specs = plan(config, chosen, partition="demonstrations", samples=1, temperature=0.0, max_turns=32)
    played: list[Trajectory] = []
    screen = Size(config.env.width, config.env.height)
    asyncio.run(
        play(
            specs,
            ScriptedAgent(words.space),
            words.space,
            lambda: SimulatedEnv(screen, config.env.layout, config.env.accessibility),
            concurrency=1,
            on_trajectory=played.append,
        )
    )
    failed = [trajectory for trajectory in played if not trajectory.success]
    if failed:
        why = failed[0].error or f"it ended as {failed[0].stop_reason}"
        raise DataError(f"The oracle failed at {len(failed)} of {len(played)} tasks, first {failed[0].task.id}: {why}.")
    save_set([row_of(trajectory, words, "demonstration") for trajectory in played], folder)
    turns = sum(len(trajectory.turns) for trajectory in played)
    families = Counter(trajectory.task.family for trajectory in played)
    return {"trajectories": len(played), "turns": turns, "by_family": dict(sorted(families.items()))}


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: tasks, out. The stage around `build_demonstrations`."""
    started = time.perf_counter()
    summary = build_demonstrations(config, load_tasks(args["tasks"]), Path(args["out"]))
    progress.log(f"{summary['trajectories']} demonstrations, {summary['turns']} turns.")
    return {**summary, "seconds": time.perf_counter() - started}
