"""One episode: an agent and an environment take turns until it ends, then the task's own checker speaks once.

This is the only place where a bad rollout becomes data: failures of the environment, the set-up, the agent or the
checker are caught here and recorded with their cause. Anything else is a bug and stops the run.
"""

import time
from dataclasses import dataclass, field
from typing import cast

from flywheel.actions.base import ActionSpace, Parsed
from flywheel.envs.base import Env
from flywheel.errors import AgentError, EnvError
from flywheel.rollout.agents.base import Agent, AgentSession, Completion
from flywheel.types import (
    Answer,
    Done,
    FailureKind,
    Observation,
    Sampling,
    StepResult,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

UNPARSED_LIMIT = 3
"""So many unreadable answers in a row end the episode: the policy has left the format and will not come back."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """What to play, and how it is named and sampled."""

    id: str
    task: Task
    sampling: Sampling
    max_turns: int
    group_id: str = ""
    experiment: str = "default"
    iteration: int = 0
    worker: str = ""


@dataclass(slots=True)
class _Course:
    """What has happened so far."""

    turns: list[Turn] = field(default_factory=list)
    stop: StopReason = "max_turns"
    reward: float | None = None
    failure: FailureKind | None = None
    error: str | None = None


async def run_episode(env: Env, agent: Agent, space: ActionSpace, spec: EpisodeSpec) -> Trajectory:
    """Play one episode; never raises for what an environment or an agent can cause."""
    started, clock = time.time(), time.perf_counter()
    course = _Course()
    session: AgentSession | None = None
    try:
        observation = await env.reset(spec.task)
        session = await agent.open(spec.task, spec.sampling)
        await _play(env, session, space, spec, observation, course)
        course.reward = await env.evaluate() if spec.task.evaluator else None
    except (EnvError, AgentError) as error:
        course.failure, course.error, course.stop = cast(FailureKind, error.kind), str(error), "error"
    finally:
        if session is not None:
            await session.close()
    return _record(course, agent, space, spec, started, time.perf_counter() - clock)


async def _play(
    env: Env, session: AgentSession, space: ActionSpace, spec: EpisodeSpec, observation: Observation, course: _Course
) -> None:
    unparsed = 0
    screen = env.capabilities.screen
    for _ in range(spec.max_turns):
        completion = await session.act(observation)
        parsed = space.parse(completion.text, screen)
        before = time.perf_counter()
        result = await _execute(env, parsed, observation)
        course.turns.append(_turn(observation, completion, parsed, result, time.perf_counter() - before))
        unparsed = unparsed + 1 if parsed.action is None else 0
        if result.done or isinstance(parsed.action, Done | Answer):
            course.stop = "answer" if isinstance(parsed.action, Answer) else "done"
            return
        if unparsed == UNPARSED_LIMIT:
            course.stop = "unparsed"
            return
        observation = result.observation


async def _execute(env: Env, parsed: Parsed, seen: Observation) -> StepResult:
    """Send the action to the desktop; an unreadable answer is told to the policy and changes nothing."""
    if parsed.action is not None:
        return await env.step(parsed.action)
    told = Observation(seen.screenshot, seen.accessibility_tree, seen.terminal, last_result=parsed.error)
    return StepResult(told, executed=False, error=parsed.error)


def _turn(seen: Observation, completion: Completion, parsed: Parsed, result: StepResult, env_seconds: float) -> Turn:
    return Turn(
        observation=seen,
        text=completion.text,
        action=parsed.action,
        prompt_ids=completion.prompt_ids,
        completion_ids=completion.completion_ids,
        logprobs=completion.logprobs,
        image_grid=completion.image_grid,
        finish_reason=completion.finish_reason,
        fallback=parsed.fallback,
        executed=result.executed,
        error=parsed.error or result.error,
        model_seconds=completion.seconds,
        env_seconds=env_seconds,
    )


def _record(
    course: _Course, agent: Agent, space: ActionSpace, spec: EpisodeSpec, started: float, wall: float
) -> Trajectory:
    ended = course.stop in ("done", "answer")
    return Trajectory(
        id=spec.id,
        task=spec.task,
        policy=agent.policy,
        turns=tuple(course.turns),
        outcome="failed" if course.failure else "completed" if ended else "truncated",
        stop_reason=course.stop,
        task_reward=course.reward,
        group_id=spec.group_id,
        failure=course.failure,
        error=course.error,
        experiment=spec.experiment,
        iteration=spec.iteration,
        action_space=space.id,
        sampling=spec.sampling,
        worker=spec.worker,
        seed=spec.sampling.seed,
        started_at=started,
        wall_seconds=wall,
    )
