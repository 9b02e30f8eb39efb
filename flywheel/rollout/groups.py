"""Many episodes at once: tasks times samples, named and seeded so that each can be repeated alone."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from flywheel.actions.base import ActionSpace
from flywheel.config import Config
from flywheel.envs.base import Env
from flywheel.rollout.agents.base import Agent
from flywheel.rollout.episode import EpisodeSpec, run_episode
from flywheel.seeds import derive_seed
from flywheel.types import Sampling, Task, Trajectory


def plan(
    config: Config,
    tasks: Sequence[Task],
    *,
    partition: str,
    samples: int,
    temperature: float,
    max_turns: int,
    iteration: int = 0,
    seed: int | None = None,
) -> list[EpisodeSpec]:
    """`samples` episodes of each task, those of one task next to each other.

    The id is a hash of (experiment, partition, seed, task, sample), so publishing an episode twice meets itself.
    """
    root = config.seed if seed is None else seed
    specs = []
    for number, task in enumerate(tasks):
        for sample in range(samples):
            own = derive_seed(root, config.experiment, partition, task.id, number, sample)
            specs.append(
                EpisodeSpec(
                    id=f"{partition}-{own:016x}",
                    task=task,
                    sampling=Sampling(temperature, config.rollout.top_p, config.rollout.max_tokens, own),
                    max_turns=max_turns,
                    group_id=f"{partition}-{number:05d}",
                    experiment=config.experiment,
                    iteration=iteration,
                )
            )
    return specs


async def play(
    specs: Sequence[EpisodeSpec],
    agent: Agent,
    space: ActionSpace,
    make_env: Callable[[], Env],
    *,
    concurrency: int,
    on_trajectory: Callable[[Trajectory], None],
) -> None:
    """Play all episodes on at most `concurrency` desktops; every desktop is closed on every path.

    A desktop that failed an episode is replaced. The first exception ends all episodes and is raised as it is.
    """
    queue: Iterator[EpisodeSpec] = iter(specs)

    async def worker() -> None:
        env = make_env()
        try:
            for spec in queue:
                trajectory = await run_episode(env, agent, space, spec)
                on_trajectory(trajectory)
                if trajectory.failure == "infrastructure":
                    await env.close()
                    env = make_env()
        finally:
            await env.close()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(specs))):
                group.create_task(worker())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
