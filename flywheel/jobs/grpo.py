"""Policy gradient: play groups, compute advantages, update, publish; again."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.config import Config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import InfrastructureError
from flywheel.jobs.base import Progress
from flywheel.jobs.outcomes import score
from flywheel.jobs.policy_gradient.allotment import Allotment
from flywheel.jobs.policy_gradient.guard_memory import Memory
from flywheel.jobs.policy_gradient.guarding import Guarding
from flywheel.jobs.policy_gradient.practice import Practice, make_practice
from flywheel.jobs.policy_gradient.reactions import Reactions
from flywheel.jobs.policy_gradient.replaying import Replay
from flywheel.jobs.policy_gradient.snapshots import snapshot
from flywheel.jobs.policy_gradient.validation import Validation, set_aside
from flywheel.jobs.pool import RolloutPool
from flywheel.jobs.publishing import Publication, Publisher
from flywheel.jobs.threads import use_threads
from flywheel.modeling.policy import load_policy
from flywheel.rollout.groups import plan
from flywheel.store.opening import open_store
from flywheel.store.store import TrajectoryStore
from flywheel.trainers.algorithms import algorithm
from flywheel.trainers.checkpoints import forget_states, save_policy, states_folder
from flywheel.trainers.credit import Credit
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.types import PolicyRef, Trajectory

RESAMPLINGS = 3
"""Rounds in which groups without spread are replaced (DAPO); without a bound a hard or solved task set never ends."""


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: init, tasks, out, version, partition, iteration, seed. Publishes its rollouts with their advantages."""
    started = time.perf_counter()
    init, out = PolicyRef(**args["init"]), Path(args["out"])
    tasks, apart = set_aside(config, load_tasks(Path(args["tasks"])))
    states = states_folder(out, *_decides(config, args))
    with RolloutPool(config, init, finish=partial(_scored, config), digest=_itself) as pool:
        use_threads(config)
        # The store's catalog runs threads of its own, which a fork would not survive: only now.
        store = open_store(config)
        practice = make_practice(config, store, tasks, args["iteration"], args["seed"], apart)
        own = {name: args[name] for name in ("partition", "iteration", "seed")}
        replay = Replay(config, store, pool.chat, tasks, **own) if config.rl.replay != "none" else None
        allotment = Allotment() if "allotment" in algorithm(config.rl.algorithm).needs else None
        memory = Memory(config.rl.guards)
        policy = PolicyModel(pool.model, pool.chat)
        trainer = PolicyGradient(
            policy,
            config.rl,
            pack_tokens=config.sft.pack_tokens,
            states=states,
            horizon=config.rollout.max_tokens * config.env.max_turns,
            seed=args["seed"],
            parts={
                "practice": practice,
                **({"replay": replay.buffer} if replay else {}),
                **({"allotment": allotment} if allotment else {}),
                **memory.parts,
            },
            watch=memory.gradients if config.rl.guards.enabled else None,
        )
        start = partial(_start, config, init)
        with _Shelf(config, args["partition"], states) as shelf:
            reactions = Reactions(config, args, memory, trainer, store, shelf.attempt, states, start)
            guarding = Guarding(memory, trainer, reactions, shelf.flush, progress)
            validation = Validation(
                config, args, pool, store, apart, memory.validated, trainer, guarding.save, progress
            )
            curve = _Loop(
                config, args, pool, trainer, practice, replay, allotment, shelf, guarding, validation, progress
            ).run()
        kept = memory.validated.best if config.rl.keep == "best" else None
        if kept is not None:
            trainer.restore(kept)
    ref = PolicyRef(args["version"], str(out), init.version, fingerprint(policy.model.parameters()))
    save_policy(policy.model, policy.chat.processor, ref, out)
    forget_states(out)
    seconds = time.perf_counter() - started
    return {
        "policy": asdict(ref),
        "updates": trainer.updates,
        "kept_update": trainer.updates if kept is None else kept,
        "episodes": shelf.episodes,
        "success_first": curve[0]["success"] if curve else None,
        "success_last": float(np.mean([point["success"] for point in curve[-5:]])) if curve else None,
        "tokens_per_second": sum(point.get("tokens", 0.0) for point in curve) / seconds,
        "partition": args["partition"],
        "attempt": shelf.attempt,
        "algorithm": config.rl.algorithm,
        "seconds": seconds,
        **memory.report(),
    }


def _decides(config: Config, args: dict[str, Any]) -> list[Any]:
    """Everything that a run which goes on from a state must share with the one that wrote it."""
    return [
        args,
        hashlib.sha256(Path(args["tasks"]).read_bytes()).hexdigest(),
        config.rl.model_dump(exclude={"steps", "save_every"}),
        config.rollout.model_dump(exclude={"concurrency", "workers"}),
        config.model_dump(include={"experiment", "prompt", "env"}),
        config.sft.model_dump(exclude={"save_every"}),
        config.flywheel.model_dump(include={"per_task", "success_threshold"}),
        config.eval.model_dump(include={"temperature", "max_turns"}) if config.rl.eval_every else None,
    ]


@dataclass(frozen=True, slots=True)
class _Batch:
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
class _Loop:
    """Update after update, from wherever the trainer stands."""

    config: Config
    args: dict[str, Any]
    pool: RolloutPool
    trainer: PolicyGradient
    practice: Practice
    replay: Replay | None
    allotment: Allotment | None
    shelf: "_Shelf"
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

    def _update(self) -> tuple[_Batch, dict[str, float]]:
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

    def _trained(self, batch: _Batch) -> tuple[list[Rollout], list[Credit]]:
        """All of a batch; where groups without spread are replaced, what is left without them."""
        if not (self._resamples and any(batch.informative_B)):
            return batch.rollouts_B, batch.credits_B
        rows = zip(batch.rollouts_B, batch.credits_B, batch.informative_B, strict=True)
        kept = [(rollout, credit) for rollout, credit, told in rows if told]
        return [rollout for rollout, _ in kept], [credit for _, credit in kept]

    @property
    def _resamples(self) -> bool:
        return "resampling" in self.trainer.algorithm.needs or self.guarding.memory.adjusted.resample

    def _collect(self) -> _Batch:
        """Groups of `rl.prompts` tasks; where the algorithm asks for it, more until as many differ in reward."""
        prompts = self.config.rl.prompts
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

    def _graded(self, played: list[Trajectory]) -> _Batch:
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
        return _Batch(played, judged, rollouts, self.trainer.credit(rollouts))


def _start(config: Config, init: PolicyRef) -> PolicyModel:
    """The policy that training started from."""
    return PolicyModel(*load_policy(config, init))


def _scored(config: Config, trajectory: Trajectory) -> Trajectory:
    return score(trajectory, config, config.env.max_turns)


def _itself(trajectory: Trajectory) -> Trajectory:
    return trajectory


class _Shelf:
    """Publishes batches behind the trainer's back, and seals the partition in the end.

    The attempt is kept beside the trainer's states: a run that goes on from a state adds to what was published before.
    """

    def __init__(self, config: Config, partition: str, states: Path) -> None:
        self._store: TrajectoryStore = open_store(config)
        self._partition, self._experiment = partition, config.experiment
        note = states / "attempt.json"
        fresh = self._store.begin(partition, config.experiment)
        self.attempt = int(json.loads(note.read_text())) if note.exists() else fresh
        states.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(self.attempt))
        self.episodes = 0
        self._publisher = Publisher(self._store, Publication(partition, self.attempt))

    def __enter__(self) -> "_Shelf":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
            self.episodes = self._store.seal(self._partition, self.attempt, None, self._experiment).episodes
        self._publisher.close()
        self._store.release(self._partition, self._experiment)

    def add(self, trajectories: list[Trajectory]) -> None:
        self._publisher.add(trajectories)

    def read(self, trajectory_id: str) -> Trajectory:
        """One that was added, as it was published."""
        self.flush()
        partition, experiment = self._partition, self._experiment
        return next(self._store.iter(partition, experiment=experiment, ids=[trajectory_id], attempt=self.attempt))

    def flush(self) -> None:
        """Wait until everything is published; raises what went wrong."""
        self._publisher.flush()
