"""Rollouts of tasks without an evaluator: held back until the outcome judge has spoken, then published."""

import asyncio
from collections.abc import Sequence

from flywheel.config import Config
from flywheel.jobs.outcomes import Outcome, outcome_of
from flywheel.jobs.publishing import Publication
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.judge import ask_verdicts, needs_judge, with_verdict
from flywheel.sections import JudgeConfig
from flywheel.store.store import TrajectoryStore
from flywheel.types import Trajectory


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

    Raises: `AgentError` when the judge does not answer, `ConfigError` when it refuses.
    """
    asked = [trajectory for trajectory in played if needs_judge(trajectory)]
    verdicts = asyncio.run(ask_verdicts(asked, config.hosted, config.judge)) if asked else []
    told = {one.id: with_verdict(one, verdict) for one, verdict in zip(asked, verdicts, strict=True)}
    done = [told.get(trajectory.id, trajectory) for trajectory in played]
    if done:
        store.publish_many(done, partition=publication.partition, attempt=publication.attempt)
    return [outcome_of(trajectory) for trajectory in done]
