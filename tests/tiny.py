"""A tiny policy that nobody trained, and what plays and trains with it: real model, real processor, real desktop."""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flywheel.chat import Chat
from flywheel.config import Config, load_config
from flywheel.datasets.sets import row_of
from flywheel.datasets.task_files import save_tasks
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.jobs.base_model import offline_processor
from flywheel.modeling.build import build_model
from flywheel.modeling.policy import load_policy
from flywheel.rollout.agents.base import Completion
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.rollout.groups import plan, play
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.documents import sample_of
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.types import Observation, PolicyRef, Sampling, Size, Task, TrainingSample, Trajectory

SCREEN = Size(160, 128)
QUIET = (
    "model.threads=1",
    "rollout.workers=1",
    "rollout.concurrency=16",
    "rollout.max_tokens=12",
    "env.families=[]",
    "env.levels=[1]",
    "store.fsync=false",
    "tracking.enabled=false",
)


def small_config(home: Path, *settings: str) -> Config:
    """The embedded profile with one thread and one worker, in a home of its own."""
    return load_config("embedded", [f"home={home}", *QUIET, *settings])


@dataclass(frozen=True)
class Tiny:
    """A saved policy and the same policy in memory. `model` is shared by all tests: read it, train on `fresh()`."""

    config: Config
    policy: PolicyRef
    model: Any
    chat: Chat

    def fresh(self) -> PolicyModel:
        """A copy of its own to train."""
        return PolicyModel(copy.deepcopy(self.model), self.chat)

    def agent(self) -> LocalAgent:
        """A copy of its own to sample from."""
        return LocalAgent(copy.deepcopy(self.model).eval(), self.chat, self.policy)


def make_tiny(home: Path) -> Tiny:
    """Random weights in the architecture of the embedded profile, saved and loaded as any policy.

    As it is built, the model copies: it would say one token for ever. Noise gives it something to say.
    """
    torch.set_num_threads(1)
    config = small_config(home)
    processor = offline_processor(config.model.tiny.merges)
    model = build_model(processor.tokenizer, config.model.tiny, seed=0)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.model.language_model.layers.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=noise))
    folder = home / "untrained"
    policy = PolicyRef("untrained", str(folder), None, fingerprint(model.parameters()))
    save_policy(model, processor, policy, folder)
    loaded, chat = load_policy(config, policy)
    return Tiny(config, policy, loaded, chat)


def some_tasks(count: int, *, seed: int = 0, **choice: Any) -> list[Task]:
    return generate_tasks(split="train", count=count, seed=seed, screen=SCREEN, **{"levels": (1,), **choice})


def write_tasks(folder: Path, count: int, **choice: Any) -> Path:
    """A task file, as the stages read it."""
    save_tasks(some_tasks(count, **choice), folder / "train.jsonl")
    return folder / "train.jsonl"


def desktop() -> SimulatedEnv:
    return SimulatedEnv(SCREEN)


def episodes(tiny: Tiny, tasks: Sequence[Task], *, samples: int = 1, temperature: float = 1.0) -> list[Trajectory]:
    """What an untrained policy does: it babbles until the episode ends, with as many screenshots as turns."""
    specs = plan(
        tiny.config, tasks, partition="babble", samples=samples, temperature=temperature, max_turns=4, iteration=1
    )
    return _play(tiny, specs, tiny.agent())


def demonstrations(tiny: Tiny, tasks: Sequence[Task]) -> list[Trajectory]:
    """What the oracle does."""
    specs = plan(tiny.config, tasks, partition="shown", samples=1, temperature=0.0, max_turns=16)
    return _play(tiny, specs, ScriptedAgent(tiny.chat.space))


def shown(tiny: Tiny, count: int) -> list[TrainingSample]:
    """Demonstrations as documents to train on."""
    documents = []
    for trajectory in demonstrations(tiny, some_tasks(count)):
        screens = [turn.observation.screenshot for turn in trajectory.turns]
        row = row_of(trajectory, tiny.chat.words, "demonstration") | {"images": screens}
        documents.append(sample_of(row, tiny.chat))
    return documents


def _play(tiny: Tiny, specs: Sequence[Any], agent: Any) -> list[Trajectory]:
    found: dict[str, Trajectory] = {}

    def take(trajectory: Trajectory) -> None:
        found[trajectory.id] = trajectory

    asyncio.run(play(specs, agent, tiny.chat.space, desktop, concurrency=16, on_trajectory=take))
    return [found[spec.id] for spec in specs]


async def converse(agent: LocalAgent, task: Task, sampling: Sampling, looks: Sequence[Observation]) -> list[Completion]:
    """One session that is shown these observations, whatever it answers."""
    session = await agent.open(task, sampling)
    try:
        return [await session.act(look) for look in looks]
    finally:
        await session.close()


@dataclass
class Notes:
    """What a stage said while it ran."""

    lines: list[str] = field(default_factory=list)
    curve: list[dict[str, float]] = field(default_factory=list)
    done: list[tuple[int, int, str]] = field(default_factory=list)

    def log(self, message: str) -> None:
        self.lines.append(message)

    def advance(self, done: int, total: int, unit: str) -> None:
        self.done.append((done, total, unit))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.curve.append({"step": step, **values})
