"""Rollouts: the policy plays training tasks, and everything it does goes to the store."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.config import Config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError
from flywheel.jobs.base import Progress
from flywheel.jobs.judging import by_evaluator, digest_of, judged
from flywheel.jobs.outcomes import Outcome, examples, mean_terms, report_of, score
from flywheel.jobs.pool import RolloutPool, begun
from flywheel.jobs.teachers import bootstrap
from flywheel.rollout.groups import plan
from flywheel.rollout.judge import TERM
from flywheel.seeds import derive_seed
from flywheel.store.opening import open_store
from flywheel.store.store import TrajectoryStore
from flywheel.types import PolicyRef, Task


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
    certain, open_ended = by_evaluator(specs, config.judge)
    if not certain:
        raise DataError("None of the tasks has an evaluator, so success could not be measured; add some that have one.")
    store = open_store(config)
    finish = partial(score, config=config, max_turns=max_turns)
    with begun(store, partition, config.experiment) as publication:
        with RolloutPool(config, policy, finish=finish, digest=partial(digest_of, config.judge)) as pool:
            clock = time.perf_counter()
            outcomes = pool.play(
                certain,
                publication=publication,
                on_done=lambda count: progress.advance(count, len(specs), "episodes"),
            )
            outcomes += judged(config, store, pool.play(open_ended), publication)
            seconds = time.perf_counter() - clock
        # Before the seal: its catalog has threads, which a teacher's fork would not survive.
        taught = _taught(config, store, chosen, args, outcomes)
        store.seal(partition, publication.attempt, len(specs), config.experiment)
    report = report_of(outcomes[: len(certain)], policy, "train", args["seed"], seconds)
    progress.log(f"{partition}: {report.solved} of {report.episodes} solved, {report.steps_per_second:.0f} steps/s.")
    if taught:
        progress.log(f"{taught['policy']} was called: {taught['solved']} of {taught['episodes']} solved.")
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
        "teacher": taught,
        "verdicts": sum(TERM in outcome.reward_terms for outcome in outcomes),
        **examples(outcomes),
        "seconds": time.perf_counter() - started,
    }


def _taught(
    config: Config, store: TrajectoryStore, tasks: Sequence[Task], args: dict[str, Any], outcomes: Sequence[Outcome]
) -> dict[str, Any] | None:
    """What the teacher did; None where nobody is to be called or the student has solved enough."""
    solved = sum(bool(outcome.result.solved) for outcome in outcomes)
    if not config.flywheel.bootstrap or solved >= config.flywheel.bootstrap_below:
        return None
    seed = derive_seed(args["seed"], "teacher")
    return bootstrap(config, store, tasks, args["partition"], args["iteration"], seed)
