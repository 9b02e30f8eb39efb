"""Entropulse: a short round of supervised fine-tuning on pooled successes, which gives entropy back.

Keeps: successes of all policies so far, at most a few a task, plain SFT for a few steps, then policy gradient goes on.
Drops: the fixed alternation of the two; a guard decides when. Source: ComputerRL, arXiv:2508.14040, section 3.3.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.datasets.sets import row_of
from flywheel.store.store import TrajectoryStore
from flywheel.trainers.documents import sample_of
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.sft import train_sft
from flywheel.types import TrainingSample, Trajectory
from flywheel.workspace import iteration_name

POOL = """
    SELECT partition, episode_id FROM episodes
    WHERE experiment = ? AND task_reward >= ?
      AND (list_contains(?, partition) OR (partition = ? AND list_contains(?, policy)))
    QUALIFY ? = 0 OR row_number() OVER (PARTITION BY task_id ORDER BY n_steps, episode_id) <= ?
    ORDER BY md5(episode_id) LIMIT ?
"""
"""The order is a shuffle that repeats. Own rollouts are named by the versions that played them: a run that goes on from
a state must not see what it had published beyond it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Whose successes are pooled: the flywheel's iterations up to one, and this run's own updates so far."""

    iteration: int
    partition: str
    versions: tuple[str, ...]


def entropulse(
    policy: PolicyModel, config: Config, store: TrajectoryStore, pool: Pool, *, seed: int, states: Path
) -> int:
    """Train in place for `rl.guards.entropulse_steps`; how many successes there were to learn from.

    Does nothing where there are none.
    """
    samples = [_document(trajectory, policy.chat) for trajectory in _successes(config, store, pool)]
    if samples:
        steps = config.rl.guards.entropulse_steps
        sft = config.sft.model_copy(update={"save_every": 0})
        train_sft(policy, samples, sft, steps=steps, seed=seed, states=states, report=_Silent())
    return len(samples)


def _successes(config: Config, store: TrajectoryStore, pool: Pool) -> list[Trajectory]:
    rounds = [iteration_name(number) for number in range(1, pool.iteration + 1)]
    per_task, most = config.flywheel.per_task, config.rl.guards.entropulse_steps * config.sft.batch
    own = [pool.partition, list(pool.versions)]
    given = [config.experiment, config.flywheel.success_threshold, rounds, *own, per_task, per_task, most]
    with store.connect() as catalog:
        rows = catalog.execute(POOL, given).fetchall()
    ids: dict[str, list[str]] = defaultdict(list)
    for partition, episode in rows:
        ids[partition].append(episode)
    return [t for name in sorted(ids) for t in store.iter(name, experiment=config.experiment, ids=ids[name])]


def _document(trajectory: Trajectory, chat: Chat) -> TrainingSample:
    """As in a training set: turns that could not be read or executed are context."""
    screens = [turn.observation.screenshot for turn in trajectory.turns if turn.observation.screenshot]
    return sample_of({**row_of(trajectory, chat.words, "rollout"), "images": screens}, chat)


class _Silent:
    """Its steps are not the run's own."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Nothing."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Nothing."""
