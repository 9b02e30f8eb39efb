"""Rollouts: the policy plays training tasks, and everything it does goes to the store."""

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.config import Config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.jobs.base import Progress
from flywheel.jobs.outcomes import examples, mean_terms, outcome_of, report_of, score
from flywheel.jobs.pool import RolloutPool, begun
from flywheel.rollout.groups import plan
from flywheel.seeds import derive_seed
from flywheel.store.opening import open_store
from flywheel.types import PolicyRef


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: policy, tasks, partition, iteration, seed. Publishes and seals the partition."""
    started = time.perf_counter()
    policy, partition = PolicyRef(**args["policy"]), args["partition"]
    tasks = load_tasks(Path(args["tasks"]))
    random = np.random.default_rng(derive_seed(args["seed"], "tasks", partition))
    chosen = [tasks[i] for i in random.permutation(len(tasks))[: config.rollout.tasks]]
    max_turns = config.env.max_turns
    specs = plan(
        config,
        chosen,
        partition=partition,
        samples=config.rollout.samples,
        temperature=config.rollout.temperature,
        max_turns=max_turns,
        iteration=args["iteration"],
        seed=args["seed"],
    )
    store = open_store(config)
    finish = partial(score, config=config, max_turns=max_turns)
    with begun(store, partition, config.experiment) as publication:
        with RolloutPool(config, policy, finish=finish, digest=outcome_of) as pool:
            clock = time.perf_counter()
            outcomes = pool.play(
                specs,
                publication=publication,
                on_done=lambda count: progress.advance(count, len(specs), "episodes"),
            )
            seconds = time.perf_counter() - clock
        store.seal(partition, publication.attempt, len(specs), config.experiment)
    report = report_of(outcomes, policy, "train", args["seed"], seconds)
    progress.log(f"{partition}: {report.solved} of {report.episodes} solved, {report.steps_per_second:.0f} steps/s.")
    numbers = asdict(report)
    del numbers["per_task"], numbers["policy"], numbers["split"], numbers["wall_seconds"]
    return {
        **numbers,
        "partition": partition,
        "attempt": publication.attempt,
        "judged": report.episodes,
        "episodes": len(specs),
        "steps": sum(outcome.turns for outcome in outcomes),
        "reward_terms": mean_terms(outcomes),
        **examples(outcomes),
        "seconds": time.perf_counter() - started,
    }
