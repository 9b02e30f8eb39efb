"""Teachers: somebody else plays where the student solves nothing, so that the flywheel has something to begin with.

`flywheel.bootstrap` names the teacher: `script` (the oracle of the simulated desktop, or the solutions of a task pack),
`hosted` (a model behind the OpenAI protocol, section `hosted`), or a checkpoint: a version of this experiment or a
folder. What it plays goes into a partition of its own under its own name, `teacher-iter-01`: the student's statistics
never count it, and SQL sees who acted.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flywheel.chat import Words, make_words
from flywheel.config import Config
from flywheel.jobs.demonstrations import play_scripts, script_of
from flywheel.jobs.environments import make_env
from flywheel.jobs.outcomes import Outcome, outcome_of, score
from flywheel.jobs.pool import RolloutPool, begun
from flywheel.jobs.publishing import Publication, Publisher
from flywheel.rollout.agents.openai import OpenAIAgent
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import plan, play
from flywheel.store.store import TrajectoryStore
from flywheel.types import PolicyRef, Task, Trajectory
from flywheel.workspace import Workspace, teacher_partition

SCRIPT, HOSTED = "script", "hosted"


def bootstrap(
    config: Config, store: TrajectoryStore, tasks: Sequence[Task], partition: str, iteration: int, seed: int
) -> dict[str, Any]:
    """Have the teacher play each task once; publishes and seals. Returns who played, where, and how many it solved.

    Raises `PolicyError` when the teacher is a checkpoint that does not exist.
    """
    name = teacher_partition(partition)
    specs = plan(
        config,
        tasks,
        partition=name,
        samples=1,
        temperature=config.flywheel.bootstrap_temperature,
        max_turns=config.env.max_turns,
        iteration=iteration,
        seed=seed,
    )
    with begun(store, name, config.experiment) as publication:
        player, outcomes = _play(config, store, specs, publication)
        store.seal(name, publication.attempt, len(specs), config.experiment)
    solved = sum(bool(outcome.result.solved) for outcome in outcomes)
    return {"policy": player, "partition": name, "episodes": len(specs), "solved": solved}


def _play(
    config: Config, store: TrajectoryStore, specs: Sequence[EpisodeSpec], publication: Publication
) -> tuple[str, list[Outcome]]:
    finish = partial(score, config=config, max_turns=config.env.max_turns)
    if config.flywheel.bootstrap not in (SCRIPT, HOSTED):
        policy = Workspace(config).policy(config.flywheel.bootstrap)
        with RolloutPool(config, policy, finish=finish, digest=outcome_of) as pool:
            return policy.version, pool.play(specs, publication=publication)
    publisher = Publisher(store, publication)
    outcomes: list[Outcome] = []

    def take(trajectory: Trajectory) -> None:
        finished = finish(trajectory)
        publisher.add([finished])
        outcomes.append(outcome_of(finished))

    words = make_words(config)
    try:
        if config.flywheel.bootstrap == SCRIPT:
            play_scripts(config, specs, words.space, take)
            player = script_of(config, words.space).policy
        else:
            player = _play_hosted(config, specs, words, take)
        publisher.flush()
    finally:
        publisher.close()
    return player.version, outcomes


def _play_hosted(
    config: Config, specs: Sequence[EpisodeSpec], words: Words, take: Callable[[Trajectory], None]
) -> PolicyRef:
    agent = OpenAIAgent(config.hosted, words)
    make = partial(make_env, config)
    asyncio.run(play(specs, agent, words.space, make, concurrency=config.hosted.concurrency, on_trajectory=take))
    return agent.policy
