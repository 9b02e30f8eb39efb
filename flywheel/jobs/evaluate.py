"""Evaluation: a policy on a split, judged by the tasks' own checkers, as a report and as trajectories in the store."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flywheel.config import Config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError
from flywheel.evaluation.report import to_json
from flywheel.jobs.base import Progress
from flywheel.jobs.outcomes import Outcome, examples, outcome_of, report_of, score
from flywheel.jobs.pool import RolloutPool, begun
from flywheel.jobs.publishing import Publication
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import plan
from flywheel.store.opening import open_store
from flywheel.types import EvalReport, PolicyRef, Split, Task


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: policy, tasks, split, episodes, seed, partition, report. Publishes, seals, writes the report."""
    started = time.perf_counter()
    policy, partition = PolicyRef(**args["policy"]), args["partition"]
    tasks = _tasks(Path(args["tasks"]), args["episodes"])
    store = open_store(config)
    finish = partial(score, config=config, max_turns=config.eval.max_turns)
    with begun(store, partition, config.experiment) as publication:
        with RolloutPool(config, policy, finish=finish, digest=outcome_of) as pool:
            report, outcomes, played = measure(
                config, pool, tasks, policy, publication, split=args["split"], seed=args["seed"], progress=progress
            )
        store.seal(partition, publication.attempt, played, config.experiment)
    progress.log(
        f"{policy.version} on {args['split']}: {report.success_rate:.1%} "
        f"[{report.ci_low:.1%}, {report.ci_high:.1%}] of {report.episodes}."
    )
    content = {**to_json(report), "partition": partition, **examples(outcomes)}
    content["seconds"] = time.perf_counter() - started
    target = Path(args["report"])
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_suffix(".tmp")
    staged.write_text(json.dumps(content, indent=2))
    staged.replace(target)
    return content


def measure(
    config: Config,
    pool: RolloutPool,
    tasks: Sequence[Task],
    policy: PolicyRef,
    publication: Publication,
    *,
    split: Split,
    seed: int,
    progress: Progress,
) -> tuple[EvalReport, list[Outcome], int]:
    """One episode a task by the rules of `eval.*`, published but not sealed.

    Args:
        pool: plays with the weights that it has now.
        policy: what these weights are called.
    Returns: the report, what became of each episode, and how many were published.
    Raises: `DataError` when none could be judged.
    """
    specs = plan(
        config,
        tasks,
        partition=publication.partition,
        samples=1,
        temperature=config.eval.temperature,
        max_turns=config.eval.max_turns,
        seed=seed,
    )
    clock = time.perf_counter()
    outcomes, played = _play(config, pool, specs, policy, publication, progress)
    return report_of(outcomes, policy, split, seed, time.perf_counter() - clock), outcomes, played


def _tasks(file: Path, episodes: int) -> list[Task]:
    """One an episode: the tasks in order, and again from the start when there are fewer."""
    tasks = load_tasks(file)
    if not tasks or episodes < 1:
        raise DataError(f"There is nothing to evaluate: {episodes} episodes of {len(tasks)} tasks.")
    return [tasks[i % len(tasks)] for i in range(episodes)]


def _play(
    config: Config,
    pool: RolloutPool,
    specs: Sequence[EpisodeSpec],
    policy: PolicyRef,
    publication: Publication,
    progress: Progress,
) -> tuple[list[Outcome], int]:
    """Play; episodes that the environment lost are run again `eval.retries` times. Outcomes, and episodes published."""
    outcomes: dict[str, Outcome] = {}
    pending, played = list(specs), 0
    for again in range(config.eval.retries + 1):
        tries = [replace(spec, id=f"{spec.id}-again{again}") if again else spec for spec in pending]
        found = pool.play(
            tries,
            policy=policy,
            publication=publication,
            digest=outcome_of,
            on_done=lambda count: progress.advance(count, len(specs), "episodes"),
        )
        played += len(tries)
        outcomes |= {spec.id: outcome for spec, outcome in zip(pending, found, strict=True)}
        pending = [spec for spec in pending if not outcomes[spec.id].result.judged]
        if not pending:
            break
        progress.log(f"The environment lost {len(pending)} episodes.")
    return [outcomes[spec.id] for spec in specs], played
