"""What the heavy jobs say about the episodes they played."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flywheel.config import Config
from flywheel.evaluation.report import EpisodeResult, summarise
from flywheel.rewards import RewardWeights, shaped_reward
from flywheel.types import EvalReport, PolicyRef, Split, Trajectory


@dataclass(frozen=True, slots=True)
class Outcome:
    """One episode without its pixels and tokens."""

    id: str
    result: EpisodeResult
    turns: int
    tokens: int
    reward_terms: dict[str, float] = field(default_factory=dict)


def score(trajectory: Trajectory, config: Config, max_turns: int) -> Trajectory:
    """With its shaped reward and the terms of it; an episode that was not judged stays without."""
    if trajectory.task_reward is None:
        return trajectory
    weights = RewardWeights(shaping=config.rl.shaping)
    reward, terms = shaped_reward(trajectory, max_turns=max_turns, weights=weights)
    return replace(trajectory, shaped_reward=reward, reward_terms=terms)


def outcome_of(trajectory: Trajectory) -> Outcome:
    """What is left of a trajectory in a report; without an evaluator nothing is known about success."""
    task = trajectory.task
    failure = trajectory.failure or (None if task.evaluator else "evaluator")
    return Outcome(
        id=trajectory.id,
        result=EpisodeResult(task.id, task.family, task.level, task.infeasible, trajectory.task_reward, failure),
        turns=len(trajectory.turns),
        tokens=sum(len(turn.completion_ids) for turn in trajectory.turns),
        reward_terms=dict(trajectory.reward_terms),
    )


def report_of(outcomes: Sequence[Outcome], policy: PolicyRef, split: Split, seed: int, seconds: float) -> EvalReport:
    """Success with its interval, and how fast it was played."""
    return summarise(
        policy,
        split,
        seed,
        [outcome.result for outcome in outcomes],
        wall_seconds=seconds,
        steps_per_second=sum(outcome.turns for outcome in outcomes) / seconds,
        tokens_per_second=sum(outcome.tokens for outcome in outcomes) / seconds,
    )


def examples(outcomes: Sequence[Outcome]) -> dict[str, str | None]:
    """The longest success and the longest failure: the ones worth looking at."""
    ordered = sorted(outcomes, key=lambda outcome: (-outcome.turns, outcome.id))
    first = {solved: next((o.id for o in ordered if o.result.solved is solved), None) for solved in (True, False)}
    return {"success_id": first[True], "failure_id": first[False]}


def mean_terms(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Mean of each reward term over the judged episodes."""
    judged = [outcome for outcome in outcomes if outcome.reward_terms and outcome.result.reward is not None]
    names = sorted({name for outcome in judged for name in outcome.reward_terms})
    return {name: float(np.mean([outcome.reward_terms.get(name, 0.0) for outcome in judged])) for name in names}
