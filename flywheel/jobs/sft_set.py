"""The filtered set of an iteration: the student's own successes, by the binary task reward. Light: no model is loaded."""

from collections import Counter
from pathlib import Path
from typing import Any

from flywheel.chat import make_words
from flywheel.config import Config
from flywheel.datasets.sets import keep_per_task, row_of, save_set
from flywheel.jobs.pool import open_store
from flywheel.types import Trajectory
from flywheel.workspace import iteration_name


def build_sft_set(config: Config, iteration: int, folder: Path) -> dict[str, Any]:
    """Successes of this iteration (`flywheel.pool: latest`) or of all up to it (`all`), a few for each task.

    Raises `DataError` when nothing succeeded, `StoreError` when an iteration has no sealed rollouts.
    """
    store = open_store(config)
    first = 1 if config.flywheel.pool == "all" else iteration
    found: list[Trajectory] = []
    for number in range(first, iteration + 1):
        trajectories = store.trajectories(iteration_name(number), experiment=config.experiment)
        found += [t for t in trajectories if (t.task_reward or 0.0) >= config.flywheel.success_threshold]
    kept = keep_per_task(found, config.flywheel.per_task)
    words = make_words(config)
    save_set([row_of(trajectory, words, "rollout") for trajectory in kept], folder)
    return {
        "trajectories": len(kept),
        "successes": len(found),
        "turns": sum(len(trajectory.turns) for trajectory in kept),
        "tokens": sum(len(turn.completion_ids) for trajectory in kept for turn in trajectory.turns),
        "by_iteration": dict(sorted(Counter(iteration_name(t.iteration) for t in kept).items())),
        "by_family": dict(sorted(Counter(t.task.family for t in kept).items())),
    }
