"""Preflight of a policy as a stage: load it, play a few episodes, and see whether all that must agree does."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import AgentError, FlywheelError
from flywheel.jobs.base import Progress
from flywheel.jobs.base_model import offline_processor
from flywheel.jobs.engines import make_engine
from flywheel.jobs.environments import make_env
from flywheel.jobs.findings import Finding
from flywheel.jobs.policy_checks import (
    Logprobs,
    accelerator,
    coordinate_scale,
    failure_reaches_evaluator,
    logprobs_agree,
    packed_as_separate,
    parser_round_trip,
    pixels_reach_model,
    processor_gives_pixels,
)
from flywheel.jobs.threads import use_threads
from flywheel.modeling.build import build_model
from flywheel.modeling.policy import load_policy
from flywheel.rollout.agents.base import Agent
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.groups import plan, play
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import pack
from flywheel.types import PolicyRef, Size, TrainingSample, Trajectory

EPISODES, TURNS = 4, 4
AGREEMENT = {"float32": 1e-4, "bfloat16": 0.2}
"""Largest difference (nats) between two forward passes that compute the same in another order, by dtype."""


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: policy (a reference, or None for a tiny one that is thrown away). Returns the findings."""
    started = time.perf_counter()
    use_threads(config)
    findings = [accelerator(config.model.device)]
    if findings[0].ok:
        with _policy(config, args["policy"]) as (policy, model, chat):
            findings += policy_findings(config, policy, model, chat)
    return {"findings": [asdict(finding) for finding in findings], "seconds": time.perf_counter() - started}


def policy_findings(config: Config, policy: PolicyRef, model: Any, chat: Chat) -> Iterator[Finding]:
    """Every check of a policy. Those that need an episode are left out when none can be played."""
    yield _guarded("parser", lambda: parser_round_trip(chat.space, chat))
    yield _guarded("coordinates", lambda: coordinate_scale(chat.space))
    yield _guarded("failure", lambda: failure_reaches_evaluator(config, lambda: make_env(config)))
    try:
        samples = _samples(config, _agent(config, policy, model, chat), chat)
    except FlywheelError as error:
        yield Finding("engine", False, str(error), "look whether the model and its processor belong together.")
        return
    tokens = sum(int(sample.train_mask.sum()) for sample in samples)
    yield Finding("engine", True, f"{len(samples)} episodes played, {tokens} tokens sampled")
    yield _guarded("processor", lambda: processor_gives_pixels(chat.processor, chat, samples[0].images[0]))
    limit, logprobs = AGREEMENT[config.model.dtype], trainer_logprobs(model, chat)
    yield _guarded("pixels", lambda: pixels_reach_model(samples, logprobs))
    yield _guarded("logprobs", lambda: logprobs_agree(samples, logprobs, limit))
    yield _guarded("packing", lambda: packed_as_separate(samples, logprobs, limit))


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except FlywheelError as error:
        return Finding(name, False, str(error), "the sentence names what to mend.")


def _agent(config: Config, policy: PolicyRef, model: Any, chat: Chat) -> Agent:
    """Whoever answers while the policy plays. Raises `FlywheelError` where it is a server that will not."""
    if config.rollout.engine == "local":
        return LocalAgent(model, chat, policy)
    engine = make_engine(config, policy)
    return engine.agent(policy, engine.take(policy))


def _samples(config: Config, agent: Agent, chat: Chat) -> list[TrainingSample]:
    """A few episodes of several turns each, as documents. Raises `AgentError` when the engine cannot play."""
    tasks = generate_tasks(
        split="train",
        count=EPISODES,
        seed=config.seed,
        screen=Size(config.env.width, config.env.height),
        layout=config.env.layout,
        families=("two_step",),
    )
    specs = plan(config, tasks, partition="doctor", samples=1, temperature=1.0, max_turns=TURNS)
    played: list[Trajectory] = []
    asyncio.run(
        play(specs, agent, chat.space, lambda: make_env(config), concurrency=EPISODES, on_trajectory=played.append)
    )
    lost = next((trajectory for trajectory in played if trajectory.failure), None)
    if lost is not None:
        raise AgentError(f"An episode ended as failed ({lost.failure}): {lost.error}")
    return [chat.sample(trajectory) for trajectory in played]


def trainer_logprobs(model: Any, chat: Chat) -> Logprobs:
    """What trainers would make of documents in one packed row."""
    trainer = PolicyModel(model, chat)
    merge = chat.processor.image_processor.merge_size

    def logprobs(samples: Sequence[TrainingSample]) -> torch.Tensor:
        with torch.no_grad():
            return trainer.logprobs(pack(samples, image_id=chat.image_id, merge=merge)).float().cpu()

    return logprobs


@contextmanager
def _policy(config: Config, given: dict[str, Any] | None) -> Iterator[tuple[PolicyRef, Any, Chat]]:
    """The policy that was asked for, or an untrained tiny one: what is checked does not depend on training."""
    if given is not None:
        policy = PolicyRef(**given)
        yield policy, *load_policy(config, policy)
        return
    with tempfile.TemporaryDirectory(prefix="flywheel-doctor-") as scratch:
        policy = PolicyRef("throw-away", str(Path(scratch) / "policy"))
        processor = offline_processor(config.model.tiny.merges)
        model = build_model(processor.tokenizer, config.model.tiny, config.seed)
        save_policy(model, processor, policy, Path(policy.uri))
        yield policy, *load_policy(config, policy)
