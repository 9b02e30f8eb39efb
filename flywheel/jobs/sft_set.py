"""The filtered set of an iteration: successes by the binary task reward, the student's own unless a teacher was called.

No model is loaded.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from flywheel.chat import make_words
from flywheel.config import Config
from flywheel.datasets.sets import keep_per_task, row_of, save_set, size_of
from flywheel.jobs.base import Progress
from flywheel.rollout.judge import accepted
from flywheel.store.opening import open_store
from flywheel.store.store import TrajectoryStore
from flywheel.types import Trajectory
from flywheel.workspace import iteration_name, teacher_partition


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: iteration, out, demonstrations (a set to mix in, or None), seed.

    Where the student solves nothing yet, the demonstrations alone are the set: the teacher's bootstrap. How many
    successes an iteration must have is up to the check before this (`flywheel.min_successes`).

    Raises `DataError` when nothing succeeded and nothing is mixed in, `StoreError` when an iteration has no sealed
    rollouts.
    """
    started = time.perf_counter()
    iteration, mixed_in = args["iteration"], args["demonstrations"]
    found = _successes(config, iteration)
    kept = keep_per_task(found, config.flywheel.per_task)
    words = make_words(config)
    rows = [row_of(trajectory, words, "rollout") for trajectory in kept]
    save_set(rows, Path(args["out"]), mixed_in=Path(mixed_in) if mixed_in else None)
    shown = size_of(Path(mixed_in)) if mixed_in else 0
    progress.log(f"{len(kept)} of {len(found)} successes kept, {shown} demonstrations mixed in.")
    return {
        "trajectories": len(kept) + shown,
        "from_demonstrations": shown,
        "successes": len(found),
        "turns": sum(len(trajectory.turns) for trajectory in kept),
        "tokens": sum(len(turn.completion_ids) for trajectory in kept for turn in trajectory.turns),
        "by_iteration": dict(sorted(Counter(iteration_name(t.iteration) for t in kept).items())),
        "by_judge": sum(accepted(t, config.judge) for t in kept),
        "by_policy": dict(sorted(Counter(t.policy.version for t in kept).items())),
        "by_family": dict(sorted(Counter(t.task.family for t in kept).items())),
        "seconds": time.perf_counter() - started,
    }


def _successes(config: Config, iteration: int) -> list[Trajectory]:
    """Of this iteration (`flywheel.pool: latest`), or of all up to it (`all`)."""
    store = open_store(config)
    first = 1 if config.flywheel.pool == "all" else iteration
    return [trajectory for number in range(first, iteration + 1) for trajectory in _of(config, store, number)]


def _of(config: Config, store: TrajectoryStore, iteration: int) -> list[Trajectory]:
    """The student's own; where they were too few and a teacher was called, its as well."""
    own = _kept(config, store, iteration_name(iteration))
    teacher = teacher_partition(iteration_name(iteration))
    called = config.flywheel.bootstrap and len(own) < config.flywheel.bootstrap_below
    if called and store.head(teacher, config.experiment):
        return [*own, *_kept(config, store, teacher)]
    return own


def _kept(config: Config, store: TrajectoryStore, partition: str) -> list[Trajectory]:
    """By the evaluator's verdict; where a task has none and the judge is enabled, by its votes."""
    found = store.iter(partition, experiment=config.experiment, success=None if config.judge.enabled else True)
    threshold = config.flywheel.success_threshold
    return [one for one in found if (one.task_reward or 0.0) >= threshold or accepted(one, config.judge)]
