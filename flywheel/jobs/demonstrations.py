"""Demonstrations: a script plays, and what it said becomes a training set. Light: no model is loaded."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flywheel.actions.base import ActionSpace
from flywheel.chat import make_words
from flywheel.config import Config
from flywheel.datasets.sets import row_of, save_set
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError
from flywheel.jobs.base import Progress
from flywheel.jobs.environments import make_env
from flywheel.rollout.agents.base import Agent
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.rollout.agents.solutions import SolutionAgent, needs_accessibility
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import plan, play
from flywheel.types import Task, Trajectory


def build_demonstrations(config: Config, tasks: Sequence[Task], folder: Path) -> dict[str, Any]:
    """Play `tasks.demonstrations` tasks by script and save them, in the order of the tasks.

    The script of a generated task is the oracle, which knows the simulated desktop; tasks of packs bring their own.

    Raises `DataError` when the oracle fails at one, or no script of a pack succeeds: real applications may be late,
    the oracle may not.
    """
    words = make_words(config)
    chosen = list(tasks)[: config.tasks.demonstrations]
    specs = plan(config, chosen, partition="demonstrations", samples=1, temperature=0.0, max_turns=32)
    played: list[Trajectory] = []
    play_scripts(config, specs, words.space, played.append)
    place = {spec.id: number for number, spec in enumerate(specs)}
    played.sort(key=lambda trajectory: place[trajectory.id])  # desktops finish in another order in every run
    shown = [trajectory for trajectory in played if trajectory.success]
    failed = [trajectory for trajectory in played if not trajectory.success]
    if failed and (not shown or not config.tasks.source):
        why = failed[0].error or f"it ended as {failed[0].stop_reason}"
        raise DataError(f"The script failed at {len(failed)} of {len(played)} tasks, first {failed[0].task.id}: {why}.")
    save_set([row_of(trajectory, words, "demonstration") for trajectory in shown], folder)
    turns = sum(len(trajectory.turns) for trajectory in shown)
    families = Counter(trajectory.task.family for trajectory in shown)
    counted = {"trajectories": len(shown), "failed": len(failed), "turns": turns}
    return {**counted, "by_family": dict(sorted(families.items()))}


def script_of(config: Config, space: ActionSpace) -> Agent:
    """Who plays by script: the oracle, or what tasks of packs bring along."""
    return SolutionAgent(space) if config.tasks.source else ScriptedAgent(space)


def play_scripts(
    config: Config, specs: Sequence[EpisodeSpec], space: ActionSpace, on_trajectory: Callable[[Trajectory], None]
) -> None:
    """Play every episode by script, whatever becomes of it.

    Only tasks whose solution looks elements up are played with the accessibility tree: with it a step in LibreOffice
    takes two to three seconds.
    """
    for seeing in (False, True):
        env = config.env.model_copy(update={"accessibility": config.env.accessibility or seeing})
        asyncio.run(
            play(
                [spec for spec in specs if needs_accessibility(spec.task) is seeing],
                script_of(config, space),
                space,
                partial(make_env, config.model_copy(update={"env": env})),
                concurrency=config.rollout.concurrency if config.env.backend == "remote" else 1,
                on_trajectory=on_trajectory,
            )
        )


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: tasks, out. The stage around `build_demonstrations`."""
    started = time.perf_counter()
    summary = build_demonstrations(config, load_tasks(args["tasks"]), Path(args["out"]))
    progress.log(f"{summary['trajectories']} demonstrations, {summary['turns']} turns.")
    return {**summary, "seconds": time.perf_counter() - started}
