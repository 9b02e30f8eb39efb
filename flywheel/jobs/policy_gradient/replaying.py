"""Replay in policy gradient: the buffer filled from the store, and groups that take a success in.

The buffer begins with the successes that the flywheel's rollouts had up to this iteration, found by SQL (and before
them, where `rl.warm_start` asks for it, with the demonstrations); what practice itself solves joins it update by
update. Trainer states hold what it names, so a resumed run draws what it would have drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.datasets.sets import load_rows, row_of
from flywheel.jobs.outcomes import score
from flywheel.rollout.replay import RULES, Success, SuccessBuffer
from flywheel.store.store import TrajectoryStore
from flywheel.trainers.documents import sample_of
from flywheel.trainers.rollout import Rollout
from flywheel.types import Observation, PolicyRef, Task, TrainingSample, Trajectory, Turn
from flywheel.workspace import Workspace, iteration_name, teacher_partition

SUCCESSES = """
    SELECT task_id, partition, episode_id FROM episodes
    WHERE experiment = $experiment AND partition IN (SELECT unnest($partitions)) AND success AND n_steps > 0
      AND split = 'train' AND action_space = $space
    QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY iteration DESC, episode_id DESC) <= $size
    ORDER BY task_id, iteration, episode_id
"""
DEMONSTRATIONS = "demonstrations"

Reader = Callable[[str], Trajectory]
"""Id of a trajectory that this very run has played -> the trajectory."""


class Replay:
    """The buffer of one run, and the rule by which it is drawn from.

    Args:
        config: `rl.replay`, `rl.replay_size`, `rl.warm_start`.
        store: where earlier rollouts are.
        chat: makes documents of trajectories.
        tasks: training tasks; others are never drawn.
        partition: of this run's own rollouts.
        iteration: the last whose rollouts are looked at; 0 for none.
        seed: decides the draws.
    """

    def __init__(
        self,
        config: Config,
        store: TrajectoryStore,
        chat: Chat,
        tasks: Sequence[Task],
        *,
        partition: str,
        iteration: int,
        seed: int,
    ) -> None:
        self._config, self._store, self._chat, self._partition = config, store, chat, partition
        self._rule = RULES[config.rl.replay]
        self.buffer = SuccessBuffer(config.rl.replay_size or self._rule.size, seed)
        self._tasks = {task.id: task for task in tasks}
        shown = _demonstrations(config) if config.rl.warm_start else {}
        self._shown = {name: row for name, row in shown.items() if row["task_id"] in self._tasks}
        for name, row in self._shown.items():
            self.buffer.add(Success(row["task_id"], DEMONSTRATIONS, name))
        for success in self._successes(iteration):
            if success.task_id in self._tasks:
                self.buffer.add(success)

    def learn(self, played: Sequence[Trajectory]) -> None:
        """Take in the successes of one update; they can be drawn from the next one on."""
        for trajectory in played:
            if trajectory.success:
                self.buffer.add(Success(trajectory.task.id, self._partition, trajectory.id))

    def joined(self, rollouts: Sequence[Rollout], update: int, read: Reader) -> list[Rollout]:
        """The rollouts of one update, those of one group next to each other, with successes where the rule gives one.

        Args:
            update: number of the update; with the group it decides the draw.
            read: for successes of this run.
        """
        found: list[Rollout] = []
        for group_id, group in groupby(rollouts, lambda rollout: rollout.sample.group_id):
            found += self._group(list(group), read, update, group_id)
        return found

    def _group(self, rollouts: list[Rollout], read: Reader, update: int, group_id: str) -> list[Rollout]:
        if not self._rule.fires([rollout.trajectory.task_reward or 0.0 for rollout in rollouts]):
            return rollouts
        success = self.buffer.draw(rollouts[0].trajectory.task.id, update, group_id)
        if success is None:
            return rollouts
        rollout = self._rollout(success, read)
        rollout = replace(rollout, sample=replace(rollout.sample, group_id=group_id), replayed=True)
        return [rollout, *rollouts[1:]] if self._rule.joins == "first" else [*rollouts, rollout]

    def _rollout(self, success: Success, read: Reader) -> Rollout:
        if success.source == DEMONSTRATIONS:
            row = self._shown[success.trajectory_id]
            return Rollout(
                _shown_trajectory(row, self._tasks[success.task_id]), sample_of(row, self._chat), row["reward"]
            )
        if success.source == self._partition:
            trajectory = read(success.trajectory_id)
        else:
            trajectory = self._store.read(
                success.trajectory_id, partition=success.source, experiment=self._config.experiment
            )
        scored = score(trajectory, self._config, self._config.env.max_turns)
        return Rollout(scored, self._document(scored), scored.shaped_reward or 0.0)

    def _document(self, trajectory: Trajectory) -> TrainingSample:
        """As it was sampled; a teacher behind a protocol of text leaves no ids, and what it said counts as certain."""
        if all(turn.completion_ids for turn in trajectory.turns):
            return self._chat.sample(trajectory)
        shots = [turn.observation.screenshot for turn in trajectory.turns if turn.observation.screenshot]
        row = row_of(trajectory, self._chat.words, "rollout")
        return sample_of(row | {"images": shots, "turn_mask": None}, self._chat)

    def _successes(self, iteration: int) -> list[Success]:
        iterations = [iteration_name(number) for number in range(1, iteration + 1)]
        wanted = {
            "experiment": self._config.experiment,
            "partitions": [name for own in iterations for name in (own, teacher_partition(own))],
            "space": self._chat.space.id,
            "size": self._config.rl.replay_size or self._rule.size,
        }
        with self._store.connect() as catalog:
            return [Success(*row) for row in catalog.execute(SUCCESSES, wanted).fetchall()]


def _demonstrations(config: Config) -> dict[str, dict[str, Any]]:
    """Rows of the demonstrations by trajectory; those without a task reward are nobody's success."""
    folder: Path = Workspace(config).demonstrations_dir
    return {row["trajectory_id"]: row for row in load_rows(folder) if (row["reward"] or 0.0) >= 0.5}


def _shown_trajectory(row: dict[str, Any], task: Task) -> Trajectory:
    """What a demonstration says and sees, as far as a training set keeps it: its actions are only in its words."""
    answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    looks = [Observation(shot) for shot in row["images"]] or [Observation(None)] * len(answers)
    return Trajectory(
        id=row["trajectory_id"],
        task=task,
        policy=PolicyRef(row["policy"], ""),
        turns=tuple(Turn(look, text, None) for look, text in zip(looks, answers, strict=True)),
        outcome="completed",
        stop_reason="done",
        task_reward=row["reward"],
    )
