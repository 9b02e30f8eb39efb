"""The outcome judge at work: a hosted model, or a policy in this process; and rollouts of tasks without an evaluator,
which are held back until it has spoken, then published."""

import asyncio
from collections.abc import Sequence

from flywheel.chat import Prompt
from flywheel.config import Config
from flywheel.jobs.outcomes import Outcome, outcome_of
from flywheel.jobs.publishing import Publication
from flywheel.modeling.policy import load_policy
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.judge import (
    INSTRUCTIONS,
    Question,
    Verdict,
    ask_verdicts,
    hosted_verdicts,
    needs_judge,
    with_verdict,
)
from flywheel.sections import JudgeConfig
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.types import Sampling, Trajectory
from flywheel.workspace import Workspace


def by_evaluator(specs: Sequence[EpisodeSpec], judge: JudgeConfig) -> tuple[list[EpisodeSpec], list[EpisodeSpec]]:
    """Episodes that an evaluator judges, and those for the judge: none of these where it is not enabled."""
    certain = [spec for spec in specs if spec.task.evaluator or not judge.enabled]
    return certain, [spec for spec in specs if judge.enabled and not spec.task.evaluator]


def digest_of(judge: JudgeConfig, trajectory: Trajectory) -> Outcome | Trajectory:
    """What a rollout worker sends back: all of an episode that the judge has to see."""
    return trajectory if judge.enabled and not trajectory.task.evaluator else outcome_of(trajectory)


def judged(
    config: Config, store: TrajectoryStore, played: Sequence[Trajectory], publication: Publication
) -> list[Outcome]:
    """Have episodes judged and publish them; those that failed are published as they are.

    Raises: as `verdicts`.
    """
    asked = [trajectory for trajectory in played if needs_judge(trajectory)]
    told = {one.id: with_verdict(one, said) for one, said in zip(asked, verdicts(config, asked), strict=True)}
    done = [told.get(trajectory.id, trajectory) for trajectory in played]
    if done:
        store.publish_many(done, partition=publication.partition, attempt=publication.attempt)
    return [outcome_of(trajectory) for trajectory in done]


def verdicts(config: Config, trajectories: Sequence[Trajectory]) -> list[Verdict]:
    """One a trajectory, by the policy `judge.policy`, loaded beside whatever plays; by the hosted model without one.

    Raises: `AgentError` when the judge does not answer, `ConfigError` when it refuses, `PolicyError` for a policy that
    there is not.
    """
    if not trajectories:
        return []
    if not config.judge.policy:
        return asyncio.run(hosted_verdicts(trajectories, config.hosted, config.judge))
    policy = Workspace(config).policy(config.judge.policy)
    model, chat = load_policy(config, policy)
    return asyncio.run(_local_verdicts(config, LocalAgent(model, chat, policy), trajectories))


async def _local_verdicts(config: Config, agent: LocalAgent, trajectories: Sequence[Trajectory]) -> list[Verdict]:
    """The votes on a question are drawn together, each from a stream of its own."""
    judge, tasks = config.judge, {one.id: one.task for one in trajectories}

    async def vote(asked: Question, prompt: Prompt, number: int) -> str:
        seed = derive_seed(config.seed, "judge", asked.id, number)
        session = await agent.open(tasks[asked.id], Sampling(judge.temperature, 1.0, judge.max_tokens, seed))
        try:
            return (await agent.complete(session, prompt)).text
        finally:
            await session.close()

    async def answers(asked: Question) -> list[str]:
        prompt = agent.chat.question(INSTRUCTIONS, asked.text, asked.shots)
        return await asyncio.gather(*(vote(asked, prompt, number) for number in range(judge.votes)))

    at_once = max(1, config.rollout.concurrency // judge.votes)
    return await ask_verdicts(trajectories, judge.screenshots, answers, at_once)
