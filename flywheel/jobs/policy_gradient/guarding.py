"""Guards around a run of policy gradient: measure, judge, react, keep the best state, pause."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flywheel.errors import TrainingPausedError
from flywheel.jobs.base import Progress
from flywheel.jobs.policy_gradient.behaviour import behaviour
from flywheel.jobs.policy_gradient.guard_memory import Memory
from flywheel.jobs.policy_gradient.reactions import Reactions
from flywheel.trainers.guards import Finding
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.types import Trajectory


@dataclass(slots=True)
class Guarding:
    """Between the updates of one run.

    Args:
        publish: waits until everything that was played is in the store.
    """

    memory: Memory
    trainer: PolicyGradient
    reactions: Reactions
    publish: Callable[[], None]
    progress: Progress
    _findings: list[Finding] = field(default_factory=list)

    @property
    def enabled(self) -> bool:
        return bool(self.memory.guards.table)

    def begin(self) -> None:
        """Put what a resumed state had changed into force; keep the state of the start, to go back to at worst."""
        self.reactions.apply()
        if self.enabled and not self.trainer.updates:
            self.save()

    def judge(
        self, played: Sequence[Trajectory], rollouts: Sequence[Rollout], metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """Further figures of an update; what they mean is kept for `react`.

        Args:
            played: every episode of the update.
            rollouts: what was trained on.
        """
        memory = self.memory
        figures = behaviour(played) | memory.gradients.take()
        if memory.evaluations.add(metrics["success"], figures["shaped_reward"]) and self.enabled:
            figures["shaping_gain"] = memory.evaluations.shaping_gain
            if "ref_kl" not in metrics:
                figures["ref_kl"] = self.trainer.drift(rollouts)
        self._findings = memory.guards.judge({**metrics, **figures})
        levels = [finding.level for finding in self._findings]
        return figures | {"guards_warned": float(levels.count("warn")), "guards_reacted": float(levels.count("react"))}

    def react(self, judged: Sequence[Trajectory]) -> None:
        """Carry out what the guards ask for, and keep the state if it is the best so far.

        Raises `TrainingPausedError`; everything is published and saved then.
        """
        if any(finding.asks for finding in self._findings):
            self.publish()
        sound = all(finding.level != "react" for finding in self._findings)
        self.memory.evaluations.settle(sound)
        known = len(self.memory.adjusted.taken)
        pausing = self.reactions.carry_out(self._findings, judged)
        for done in self.memory.adjusted.taken[known:]:
            self.progress.log(f"update {done['update']}: {done['why']}: {done['did']}.")
        if pausing:
            self.save()
            raise TrainingPausedError(
                f"Policy gradient paused: {'; '.join(pausing)}; run it again and it goes on from there."
            )
        if self.enabled and sound and self.memory.evaluations.propose(self.trainer.updates):
            self.save()

    def save(self) -> None:
        """Write a state to go on from; those to go back to are kept beside it."""
        self.publish()
        self.trainer.save(self.memory.kept)
