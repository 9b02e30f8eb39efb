"""What guards ask for, carried out on a run of policy gradient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from flywheel.config import Config
from flywheel.jobs.outcomes import score
from flywheel.jobs.policy_gradient.entropulse import Pool, entropulse
from flywheel.jobs.policy_gradient.guard_memory import Adjusted, Memory
from flywheel.jobs.policy_gradient.snapshots import snapshot
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.trainers.guards import Finding, Reaction
from flywheel.trainers.rl import PolicyGradient
from flywheel.types import Trajectory

ORDER: tuple[Reaction, ...] = get_args(Reaction)


@dataclass(frozen=True, slots=True)
class Reactions:
    """One method a reaction; each returns what it did in a few words, or None where there was nothing to be done.

    Args:
        store, attempt: where successes are pooled from; what was played must have been published.
    """

    config: Config
    args: Mapping[str, Any]
    memory: Memory
    trainer: PolicyGradient
    store: TrajectoryStore
    attempt: int
    states: Path

    @property
    def adjusted(self) -> Adjusted:
        return self.memory.adjusted

    def apply(self) -> None:
        """Put what was changed into force; after a resumed state, too."""
        self.trainer.adjust(self.adjusted.rl, self.adjusted.lr)

    def carry_out(self, findings: Sequence[Finding], judged: Sequence[Trajectory]) -> list[str]:
        """Do what is asked for, each thing once and in a fixed order; sentences of what is a reason to pause.

        Args:
            judged: the episodes of the update.
        """
        if not any("resample" in finding.asks for finding in findings):
            self.adjusted.resample = False
        pausing = []
        for reaction in ORDER:
            asking = [finding for finding in findings if reaction in finding.asks]
            if not asking:
                continue
            if reaction == "pause" or (reaction == "restore_best" and self._spent):
                pausing.append(f"{asking[0]} after update {self.trainer.updates}; {asking[0].guard.advice}")
                continue
            did = getattr(self, reaction)(judged)
            if did:
                self._note(asking, reaction, did)
        self.apply()
        return pausing

    def rescored(self, played: list[Trajectory]) -> list[Trajectory]:
        """With the present weight of shaping; workers score with that of the start."""
        if "shaping" not in self.adjusted.rl:
            return played
        config = self.config.model_copy(update={"rl": self.trainer.config})
        return [score(trajectory, config, config.env.max_turns) for trajectory in played]

    @property
    def _spent(self) -> bool:
        return self.adjusted.restores >= self.config.rl.guards.restores

    def _note(self, asking: Sequence[Finding], reaction: Reaction, did: str) -> None:
        where = {"update": self.trainer.updates, "why": str(asking[0])}
        self.adjusted.taken.append({**where, "reaction": reaction, "did": did})

    # --- one method a reaction ------------------------------------------------------------------------------

    def skip_step(self, _: Sequence[Trajectory]) -> str:
        return "the step was not taken"

    def exclude_rows(self, _: Sequence[Trajectory]) -> str:
        return "episodes that the environment lost were left out"

    def resample(self, _: Sequence[Trajectory]) -> str | None:
        """From here on, until the share falls."""
        if self.adjusted.resample:
            return None
        self.adjusted.resample = True
        return "more groups are played in place of those without spread"

    def correct(self, _: Sequence[Trajectory]) -> str | None:
        """Truncated importance weights, where the algorithm has no correction of its own."""
        if (self.trainer.config.correction or self.trainer.algorithm.correction) != "none":
            return None
        self.adjusted.rl["correction"] = "token_tis"
        return "tokens are weighed for what engine and trainer disagree on"

    def cap_turns(self, judged: Sequence[Trajectory]) -> str | None:
        """At the longest success and one more: what takes longer has not succeeded lately."""
        turns = [len(trajectory.turns) for trajectory in judged if trajectory.success]
        cap = max(turns, default=0) + 1
        if not turns or cap >= self.max_turns:
            return None
        self.adjusted.max_turns = cap
        return f"episodes end after {cap} turns"

    def cut_shaping(self, _: Sequence[Trajectory]) -> str | None:
        weight = self.trainer.config.shaping / 2
        if not weight:
            return None
        self.adjusted.rl["shaping"] = weight
        return f"shaping weighs {weight:.3g}"

    def raise_clip(self, _: Sequence[Trajectory]) -> str | None:
        """Clip-higher leaves room to unlikely tokens, which keeps entropy up."""
        configured = self.trainer.config.clip_high
        bound = self.trainer.algorithm.clip_high if configured is None else configured
        if bound is None:
            return None
        self.adjusted.rl["clip_high"] = bound * self.config.rl.guards.clip_raise
        return f"the upper clip is {self.adjusted.rl['clip_high']:.3g}"

    def add_kl(self, _: Sequence[Trajectory]) -> str | None:
        return self._set_kl(self.config.rl.guards.kl)

    def double_kl(self, _: Sequence[Trajectory]) -> str | None:
        return self._set_kl(2 * self.trainer.config.kl)

    def _set_kl(self, coefficient: float) -> str | None:
        if coefficient <= self.trainer.config.kl:
            return None
        self.adjusted.rl["kl"] = coefficient
        return f"the KL coefficient is {coefficient:.3g}"

    def move_reference(self, _: Sequence[Trajectory]) -> str | None:
        """Only where evaluation confirms a gain; a policy that got worse is held where it was."""
        if not (self.trainer.config.kl and self.memory.evaluations.gained):
            return None
        self.trainer.learner.move_reference()
        return "the reference is the policy as it is now"

    def restore_best(self, _: Sequence[Trajectory]) -> str:
        self.adjusted.restores += 1
        self.trainer.restore(self.memory.evaluations.best)
        return f"the state after update {self.memory.evaluations.best} was restored"

    def halve_lr(self, _: Sequence[Trajectory]) -> str:
        self.adjusted.lr /= 2
        return f"the learning rate is {self.adjusted.lr * self.config.rl.lr:.3g}"

    def sft_round(self, _: Sequence[Trajectory]) -> str | None:
        """An Entropulse round; None where nothing has succeeded yet."""
        update = self.trainer.updates
        versions = tuple(snapshot(self.args, number).version for number in range(update))
        pool = Pool(self.args["iteration"], self.args["partition"], self.attempt, versions)
        seed = derive_seed(self.args["seed"], "entropulse", update)
        states = self.states / f"entropulse-{update:06d}"
        found = entropulse(self.trainer.learner, self.config, self.store, pool, seed=seed, states=states)
        return f"{self.config.rl.guards.entropulse_steps} steps of SFT on {found} successes" if found else None

    @property
    def max_turns(self) -> int:
        return self.adjusted.max_turns or self.config.env.max_turns
