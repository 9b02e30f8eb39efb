"""Entropulse: a short round of supervised fine-tuning on pooled successes, which gives entropy back.

Keeps: successes of all policies so far, at most a few a task, plain SFT for a few steps, then policy gradient goes on.
Drops: the fixed alternation of the two; a guard decides when. Source: ComputerRL, arXiv:2508.14040.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.datasets.sets import keep_per_task, row_of
from flywheel.store.store import TrajectoryStore
from flywheel.trainers.documents import sample_of
from flywheel.trainers.learner import Learner
from flywheel.types import TrainingSample, Trajectory
from flywheel.workspace import iteration_name

SUCCESSES = """
    SELECT partition, list(episode_id) FROM (
        SELECT partition, episode_id FROM episodes
        WHERE experiment = ? AND list_contains(?, partition) AND task_reward >= ?
        QUALIFY ? = 0 OR row_number() OVER (PARTITION BY task_id ORDER BY n_steps, episode_id) <= ?
    ) GROUP BY partition ORDER BY partition
"""


@dataclass(frozen=True, slots=True)
class Pool:
    """Whose successes are pooled: the flywheel's iterations up to one, and this run's own updates so far.

    Own episodes are named by the versions that played them: a run that goes on from a state must not learn from what
    it had published beyond it.
    """

    iteration: int
    partition: str
    attempt: int
    versions: tuple[str, ...]


def entropulse(learner: Learner, config: Config, store: TrajectoryStore, pool: Pool, *, seed: int, states: Path) -> int:
    """Train in place for `rl.guards.entropulse_steps`; how many successes there were to learn from.

    Does nothing where there are none.
    """
    samples = [_document(trajectory, learner.policy.chat) for trajectory in _successes(config, store, pool, seed)]
    if samples:
        steps = config.rl.guards.entropulse_steps
        sft = config.sft.model_copy(update={"save_every": 0})
        learner.supervise(samples, sft, steps=steps, seed=seed, states=states)
    return len(samples)


def _successes(config: Config, store: TrajectoryStore, pool: Pool, seed: int) -> list[Trajectory]:
    """The shortest of each task, drawn from where there are more than the round can see."""
    found = chain(_of_iterations(config, store, pool), _own(config, store, pool))
    kept = keep_per_task(found, config.flywheel.per_task)
    most = config.rl.guards.entropulse_steps * config.sft.batch
    drawn = np.random.default_rng(seed).permutation(len(kept))[:most]
    return [kept[i] for i in sorted(drawn)]


def _of_iterations(config: Config, store: TrajectoryStore, pool: Pool) -> Iterator[Trajectory]:
    rounds = [iteration_name(number) for number in range(1, pool.iteration + 1)]
    per_task = config.flywheel.per_task
    given = [config.experiment, rounds, config.flywheel.success_threshold, per_task, per_task]
    with store.connect() as catalog:
        rows = catalog.execute(SUCCESSES, given).fetchall()
    for partition, ids in rows:
        yield from store.iter(partition, experiment=config.experiment, ids=ids)


def _own(config: Config, store: TrajectoryStore, pool: Pool) -> list[Trajectory]:
    """Read by attempt: SQL does not see one that is not sealed yet where an earlier one is. Few are held at a time."""
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    played = store.iter(pool.partition, experiment=config.experiment, success=True, attempt=pool.attempt)
    for trajectory in played:
        enough = (trajectory.task_reward or 0.0) >= config.flywheel.success_threshold
        if enough and trajectory.policy.version in pool.versions:
            task = trajectory.task.id
            by_task[task] = keep_per_task([*by_task[task], trajectory], config.flywheel.per_task)
    return list(chain.from_iterable(by_task.values()))


def _document(trajectory: Trajectory, chat: Chat) -> TrainingSample:
    """As in a training set: turns that could not be read or executed are context."""
    screens = [turn.observation.screenshot for turn in trajectory.turns if turn.observation.screenshot]
    return sample_of({**row_of(trajectory, chat.words, "rollout"), "images": screens}, chat)
