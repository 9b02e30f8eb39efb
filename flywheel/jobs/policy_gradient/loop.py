"""The rounds of policy gradient: play groups, compute advantages, update, publish; again. One process does this."""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flywheel.config import Config
from flywheel.errors import InfrastructureError
from flywheel.jobs.base import Progress
from flywheel.jobs.policy_gradient.allotment import Allotment
from flywheel.jobs.policy_gradient.guarding import Guarding
from flywheel.jobs.policy_gradient.practice import Practice
from flywheel.jobs.policy_gradient.replaying import Replay
from flywheel.jobs.policy_gradient.shelf import Shelf
from flywheel.jobs.policy_gradient.snapshots import snapshot
from flywheel.jobs.policy_gradient.validation import Validation
from flywheel.jobs.pool import RolloutPool
from flywheel.rollout.groups import plan
from flywheel.trainers.credit import Credit
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.types import Trajectory

RESAMPLINGS = 3
"""Rounds in which groups without spread are replaced (DAPO); without a bound a hard or solved task set never ends."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What was played for one update, what of it was judged, and what is trained on, with a credit each.

    The last two are the same but for replay, which puts successes among them or in the place of one.
    """

    played: list[Trajectory]
    judged: list[Trajectory]
    rollouts_B: list[Rollout]
    credits_B: list[Credit]

    @property
    def informative_B(self) -> list[bool]:
        """True in groups that differ in reward."""
        groups = [rollout.sample.group_id for rollout in self.rollouts_B]
        told = {group for group, credit in zip(groups, self.credits_B, strict=True) if credit.informative}
        return [group in told for group in groups]

    @property
    def informative_groups(self) -> int:
        pairs = zip(self.rollouts_B, self.informative_B, strict=True)
        return len({rollout.sample.group_id for rollout, informative in pairs if informative})


@dataclass(frozen=True, slots=True)
class Loop:
    """Update after update, from wherever the trainer stands."""

    config: Config
    args: dict[str, Any]
    pool: RolloutPool
    trainer: PolicyGradient
    practice: Practice
    replay: Replay | None
    allotment: Allotment | None
    shelf: Shelf
    guarding: Guarding
    validation: Validation
    progress: Progress

    def run(self) -> list[dict[str, float]]:
        """What was measured at each update."""
        curve, rl = [], self.config.rl
        self.guarding.begin()
        self.validation.measure()
        while self.trainer.updates < rl.steps:
            batch, metrics = self._update()
            curve.append(metrics)
            done = self.trainer.updates
            self.progress.metrics(done, curve[-1])
            self.progress.advance(done, rl.steps, "updates")
            self.guarding.react(batch.judged)
            self.validation.measure()
            if rl.save_every and done % rl.save_every == 0 and done < rl.steps:
                self.guarding.save()
        return curve

    def _update(self) -> tuple[Batch, dict[str, float]]:
        """One round: groups of episodes under the present weights, one update, and on to the store."""
        clock = time.perf_counter()
        batch = self._collect()
        rollout_seconds = time.perf_counter() - clock
        metrics = self.trainer.update(*self._trained(batch))
        self.practice.learn(batch.judged)
        if self.allotment:
            self.allotment.learn(batch.judged)
        if self.replay:
            self.replay.learn(batch.judged)
            metrics["replayed"] = float(sum(rollout.replayed for rollout in batch.rollouts_B))
        pairs = zip(batch.rollouts_B, batch.credits_B, strict=True)
        graded = {rollout.trajectory.id: credit.advantage for rollout, credit in pairs if not rollout.replayed}
        self.shelf.add([replace(trajectory, advantage=graded.get(trajectory.id)) for trajectory in batch.played])
        metrics |= {
            "success": float(np.mean([trajectory.success for trajectory in batch.judged])),
            "lost": float(len(batch.played) - len(batch.judged)),
            "rollout_seconds": rollout_seconds,
            "update_seconds": time.perf_counter() - clock - rollout_seconds,
        }
        return batch, metrics | self.guarding.judge(batch.played, batch.rollouts_B, metrics)

    def _trained(self, batch: Batch) -> tuple[list[Rollout], list[Credit]]:
        """All of a batch; where groups without spread are replaced, what is left without them."""
        if not (self._resamples and any(batch.informative_B)):
            return batch.rollouts_B, batch.credits_B
        rows = zip(batch.rollouts_B, batch.credits_B, batch.informative_B, strict=True)
        kept = [(rollout, credit) for rollout, credit, told in rows if told]
        return [rollout for rollout, _ in kept], [credit for _, credit in kept]

    @property
    def _resamples(self) -> bool:
        return "resampling" in self.trainer.algorithm.needs or self.guarding.memory.adjusted.resample

    def _collect(self) -> Batch:
        """Groups of `rl.prompts` tasks; where the algorithm asks for it, more until as many differ in reward."""
        prompts = self.config.rl.prompts
        self.trainer.learner.hand_over()
        batch = self._graded(self._play(prompts, 0))
        for again in range(1, RESAMPLINGS + 1):
            missing = prompts - batch.informative_groups
            if not self._resamples or missing <= 0:
                break
            batch = self._graded([*batch.played, *self._play(missing, again)])
        return batch

    def _play(self, prompts: int, again: int) -> list[Trajectory]:
        number, seed = self.trainer.updates, self.args["seed"]
        scope = [number, again] if again else [number]
        specs = plan(
            self.config,
            self.practice.draw(prompts, *scope),
            partition="-".join([f"{self.args['partition']}-{number:04d}", *map(str, scope[1:])]),
            samples=self.config.rl.group,
            temperature=self.config.rl.temperature,
            max_turns=self.guarding.reactions.max_turns,
            iteration=self.args["iteration"],
            seed=seed,
        )
        specs = self.allotment.cut(specs) if self.allotment else specs
        return self.guarding.reactions.rescored(self.pool.play(specs, policy=snapshot(self.args, number)))

    def _graded(self, played: list[Trajectory]) -> Batch:
        """Raises `InfrastructureError` when no episode could be judged."""
        judged = [trajectory for trajectory in played if trajectory.shaped_reward is not None and trajectory.turns]
        if not judged:
            raise InfrastructureError(
                f"None of the {len(played)} episodes of update {self.trainer.updates} could be judged "
                f"({played[0].error}); mend the desktops and run it again: it goes on from its last state."
            )
        chat = self.pool.chat
        rollouts = [Rollout(t, chat.sample(t), t.shaped_reward or 0.0) for t in judged]
        if self.replay:
            rollouts = self.replay.joined(rollouts, self.trainer.updates, self.shelf.read)
        return Batch(played, judged, rollouts, self.trainer.credit(rollouts))
