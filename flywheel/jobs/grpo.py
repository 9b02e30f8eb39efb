"""Policy gradient: play groups, compute advantages, update, publish; again.

Under a launcher the first process plays, decides and publishes (`policy_gradient/loop.py`); the others train with it.
"""

import hashlib
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from accelerate import PartialState

from flywheel.config import Config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.jobs.base import Progress, is_first
from flywheel.jobs.outcomes import score
from flywheel.jobs.policy_gradient.allotment import Allotment
from flywheel.jobs.policy_gradient.guard_memory import Memory
from flywheel.jobs.policy_gradient.guarding import Guarding
from flywheel.jobs.policy_gradient.loop import Loop
from flywheel.jobs.policy_gradient.practice import make_practice
from flywheel.jobs.policy_gradient.reactions import Reactions
from flywheel.jobs.policy_gradient.replaying import Replay
from flywheel.jobs.policy_gradient.shelf import Shelf
from flywheel.jobs.policy_gradient.validation import Validation, set_aside
from flywheel.jobs.pool import RolloutPool
from flywheel.jobs.threads import use_threads
from flywheel.modeling.policy import device, load_policy
from flywheel.store.opening import open_store
from flywheel.trainers.algorithms import algorithm
from flywheel.trainers.checkpoints import forget_states, save_policy, states_folder
from flywheel.trainers.ensemble import Ensemble
from flywheel.trainers.learner import Learner
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.tuning import tuned
from flywheel.types import PolicyRef, Trajectory


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: init, tasks, out, version, partition, iteration, seed. Publishes its rollouts with their advantages."""
    return _conduct(config, args, progress) if is_first() else _follow(config, args)


def _conduct(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """All that there is to do but the training that is shared out."""
    started = time.perf_counter()
    init, out = PolicyRef(**args["init"]), Path(args["out"])
    tasks, apart = set_aside(config, load_tasks(Path(args["tasks"])))
    states = states_folder(out, *_decides(config, args))
    with RolloutPool(config, init, finish=partial(_scored, config), digest=_itself) as pool:
        use_threads(config)
        # Neither the store's catalog nor the processes' connections would survive a fork: their threads start only now.
        store = open_store(config)
        practice = make_practice(config, store, tasks, args["iteration"], args["seed"], apart)
        own = {name: args[name] for name in ("partition", "iteration", "seed")}
        replay = Replay(config, store, pool.chat, tasks, **own) if config.rl.replay != "none" else None
        allotment = Allotment() if "allotment" in algorithm(config.rl.algorithm).needs else None
        memory = Memory(config.rl.guards)
        learner = _learner(config, args, memory, pool)
        parts = {
            "practice": practice,
            **({"replay": replay.buffer} if replay else {}),
            **({"allotment": allotment} if allotment else {}),
            **memory.parts,
        }
        trainer = PolicyGradient(learner, states, parts)
        with Shelf(config, args["partition"], states) as shelf:
            reactions = Reactions(config, args, memory, trainer, store, shelf.attempt, states)
            guarding = Guarding(memory, trainer, reactions, shelf.flush, progress)
            validation = Validation(
                config, args, pool, store, apart, memory.validated, trainer, guarding.save, progress
            )
            curve = Loop(
                config, args, pool, trainer, practice, replay, allotment, shelf, guarding, validation, progress
            ).run()
        kept = memory.validated.best if config.rl.keep == "best" else None
        if kept is not None:
            trainer.restore(kept)
        learner.hand_over()
    ref = PolicyRef(args["version"], str(out), init.version, fingerprint(pool.model.parameters()))
    save_policy(pool.model, pool.chat.processor, ref, out)
    forget_states(out)
    learner.ensemble.dismiss()
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


def _follow(config: Config, args: dict[str, Any]) -> dict[str, Any]:
    """Train with the first process until it has done; it alone has something to tell."""
    use_threads(config)
    learner = _learner(config, args, Memory(config.rl.guards))
    learner.resume(states_folder(Path(args["out"]), *_decides(config, args)), {})
    learner.ensemble.follow(learner)
    return {}


def _learner(config: Config, args: dict[str, Any], memory: Memory, pool: RolloutPool | None = None) -> Learner:
    """Of this process. Without a launcher it trains the weights that the pool plays with; else it has its share."""
    PartialState(cpu=device(config) == "cpu")
    start = partial(_start, config, PolicyRef(**args["init"]))
    return Learner(
        PolicyModel(pool.model, pool.chat) if pool and not dist.is_initialized() else start(),
        config.rl,
        Ensemble(),
        start=start,
        pack_tokens=config.sft.pack_tokens,
        horizon=config.rollout.max_tokens * config.env.max_turns,
        seed=args["seed"],
        watch=memory.gradients if config.rl.guards.enabled else None,
        engine=pool.model if pool else None,
    )


def _start(config: Config, init: PolicyRef) -> PolicyModel:
    """The policy that training started from."""
    model, chat = load_policy(config, init)
    return tuned(model, chat, config.model) if dist.is_initialized() else PolicyModel(model, chat)


def _decides(config: Config, args: dict[str, Any]) -> list[Any]:
    """Everything that a run which goes on from a state must share with the one that wrote it."""
    return [
        args,
        hashlib.sha256(Path(args["tasks"]).read_bytes()).hexdigest(),
        config.rl.model_dump(exclude={"steps", "save_every", "processes"}),
        config.rollout.model_dump(exclude={"concurrency", "workers"}),
        config.model_dump(include={"experiment", "prompt", "env"}),
        config.sft.model_dump(exclude={"save_every", "processes", "held"}),
        config.flywheel.model_dump(include={"per_task", "success_threshold"}),
        config.eval.model_dump(include={"temperature", "max_turns"}) if config.rl.eval_every else None,
    ]


def _scored(config: Config, trajectory: Trajectory) -> Trajectory:
    return score(trajectory, config, config.env.max_turns)


def _itself(trajectory: Trajectory) -> Trajectory:
    return trajectory
