"""A policy behind sglang: does it say what the trainer scores, how fast, and how long does it wait for new weights?

    python -m benchmarks.serving_gpu [--size 2B] [--conversations 32] [--server="--mem-fraction-static 0.5"]

Needs sglang and a GPU. A policy folder with random weights of a published architecture is written as a training run
writes it, `sglang.launch_server` reads it, and the agent of `rollout.engine: sglang` talks with it: conversations of
eight turns with a new 1280 x 720 screenshot each, 64 tokens an answer. The final norm is scaled by 4, so that
distributions are not flat: flat ones would agree whatever the server sees.

Every sampled token is then scored by the trainer in a packed row. Beside the differences stand those of a control, the
same answers scored with inverted screenshots. Weights are then changed, handed over by a folder and compared again;
the control is what the old weights said. The baseline of the rate is the local engine, on the same conversations.
"""

import argparse
import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from benchmarks.training_gpu import SHAPES, Place, model_of
from flywheel.chat import Chat
from flywheel.config import Config, load_config
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.jobs.base_model import offline_processor
from flywheel.jobs.doctor import policy_findings
from flywheel.modeling.policy import make_chat
from flywheel.rollout.agents.base import Agent
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.agents.sglang import SglangAgent, load_weights
from flywheel.testing import desktop, random_trajectory
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.tuning import tuned
from flywheel.types import Observation, PolicyRef, Sampling, Screenshot, Size, Task, TrainingSample, Trajectory, Turn

TURNS, SAID = 8, 64
SCREEN = Size(1280, 720)
SCALE = 4.0
PATIENCE = 400.0
"""Seconds that a server may take to come up."""


def screens(seed: int) -> list[Observation]:
    """What one conversation is shown: a desktop on which a patch changes from turn to turn."""
    rng = np.random.default_rng(seed)
    pixels, shown = desktop(rng, SCREEN), []
    for _ in range(TURNS):
        x, y = rng.integers(0, SCREEN.width - 64), rng.integers(0, SCREEN.height - 64)
        pixels[y : y + 64, x : x + 64] = rng.integers(0, 256, (64, 64, 3))
        shown.append(Observation(Screenshot.from_array(pixels).encode()))
    return shown


async def converse(agent: Agent, task: Task, seed: int, looks: Sequence[Observation]) -> Trajectory:
    """One conversation, whatever is answered."""
    session = await agent.open(task, Sampling(1.0, max_tokens=SAID, seed=seed))
    turns = []
    try:
        for look in looks:
            said = await session.act(look)
            recorded = {"prompt_ids": said.prompt_ids, "completion_ids": said.completion_ids, "logprobs": said.logprobs}
            turns.append(Turn(look, said.text, None, image_grid=said.image_grid, **recorded))
    finally:
        await session.close()
    return replace(random_trajectory(f"c{seed}", turns=1), task=task, turns=tuple(turns))


async def crowd(agent: Agent, tasks: Sequence[Task], looks: Sequence[Sequence[Observation]]) -> list[Trajectory]:
    """All of them at once."""
    return await asyncio.gather(*(converse(agent, task, i, looks[i]) for i, task in enumerate(tasks)))


def timed(agent: Agent, tasks: Sequence[Task], looks: Sequence[Sequence[Observation]], name: str) -> list[Trajectory]:
    started = time.perf_counter()
    found = asyncio.run(crowd(agent, tasks, looks))
    seconds = time.perf_counter() - started
    turns = sum(len(t.turns) for t in found)
    tokens = sum(len(turn.completion_ids) for t in found for turn in t.turns)
    print(f"{name:<44}{turns / seconds:8.2f} turns/s{tokens / seconds:9.0f} tokens/s ({seconds:.1f} s)", flush=True)
    return found


@torch.no_grad()
def differences(policy: PolicyModel, samples: Sequence[TrainingSample]) -> np.ndarray:
    """Scored minus recorded logprob of every sampled token, nats."""
    found = []
    for sample in samples:
        recorded = torch.from_numpy(sample.logprobs[sample.train_mask])
        found.append(policy.logprobs(policy.pack([sample])).float().cpu() - recorded)
    return torch.cat(found).numpy()


def tell(name: str, found: np.ndarray) -> None:
    size = np.abs(found)
    print(f"{name:<44}mean {size.mean():.4f}  max {size.max():.3f} nats, {len(found)} tokens", flush=True)


def inverted(sample: TrainingSample) -> TrainingSample:
    return replace(sample, images=tuple(Screenshot.from_array(255 - image.array()) for image in sample.images))


def serve(folder: Path, extra: str, url: str) -> "subprocess.Popen[bytes]":
    """The server, once it answers."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), "--port", url.split(":")[-1]]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--enable-multimodal", *shlex.split(extra)])
    while time.perf_counter() - started < PATIENCE:
        try:
            if httpx.get(f"{url}/health", timeout=5).is_success:
                print(f"sglang answers after {time.perf_counter() - started:.0f} s", flush=True)
                return process
        except httpx.TransportError:
            pass
        if process.poll() is not None:
            raise SystemExit(f"sglang ended with status {process.returncode}.")
        time.sleep(1)
    process.terminate()
    raise SystemExit("sglang did not come up.")


def handed_over(model: Any, chat: Chat, config: Config, policy: PolicyRef) -> None:
    """Saved, and read by the server; says how long each took."""
    started = time.perf_counter()
    save_policy(model, chat.processor, policy, Path(policy.uri))
    saved = time.perf_counter()
    load_weights(config.sglang, Path(policy.uri), policy.version)
    read = time.perf_counter()
    print(f"hand-over: saved in {saved - started:.2f} s, read by the server in {read - saved:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", default="2B", choices=sorted(SHAPES))
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--scored", type=int, default=8, help="conversations that the trainer scores")
    parser.add_argument("--server", default="", help="more arguments of sglang.launch_server")
    parser.add_argument("--folder", default="", help="where policies are written; a temporary folder if empty")
    arguments = parser.parse_args()
    url = "http://127.0.0.1:30000"
    config = load_config("single-gpu", ["rollout.engine=sglang", f"sglang.url={url}", "env.accessibility=false"])
    chat = make_chat(config, offline_processor(config.model.tiny.merges))
    with tempfile.TemporaryDirectory() as scratch:
        run(arguments, config, chat, Path(arguments.folder or scratch))


def run(arguments: argparse.Namespace, config: Config, chat: Chat, home: Path) -> None:
    model = model_of(SHAPES[arguments.size], Place("cuda", torch.bfloat16, SCREEN), chat).eval()
    with torch.no_grad():
        model.model.language_model.norm.weight.mul_(SCALE)
    first, second = (PolicyRef(name, str(home / name)) for name in ("first", "second"))
    save_policy(model, chat.processor, first, Path(first.uri))
    tasks = generate_tasks(split="train", count=arguments.conversations, seed=0, screen=SCREEN, layout="free")
    looks = [screens(seed) for seed in range(len(tasks))]
    server = serve(Path(first.uri), arguments.server, config.sglang.url)
    try:
        for finding in policy_findings(config, first, model, chat):
            print(f"{'ok' if finding.ok else 'FAILED':<8}{finding.name:<14}{finding.detail}", flush=True)
        handed_over(model, chat, config, first)
        agent = SglangAgent(config.sglang, chat, first, first.version)
        timed(agent, tasks[:4], looks, "sglang, 4 conversations at once (warming up)")
        played = timed(agent, tasks, looks, f"sglang, {len(tasks)} conversations at once")
        few = [seen[:2] for seen in looks]  # before layers are compiled for the trainer's lengths
        timed(LocalAgent(model, chat, first), tasks, few, f"local engine, {len(tasks)} conversations, 2 turns")
        some = [chat.sample(trajectory) for trajectory in played[: arguments.scored]]
        policy = tuned(model, chat, config.model)
        tell("sglang against the trainer", differences(policy, some))
        tell("  control: inverted screenshots", differences(policy, [inverted(sample) for sample in some]))
        noise = torch.Generator("cuda").manual_seed(1)
        with torch.no_grad():
            for weight in model.model.language_model.layers.parameters():
                weight.add_(0.2 * weight.std() * torch.randn(weight.shape, generator=noise, device="cuda").to(weight))
        handed_over(model, chat, config, second)
        again = asyncio.run(crowd(SglangAgent(config.sglang, chat, second, second.version), tasks[:4], looks))
        tell("changed weights, handed over", differences(policy, [chat.sample(trajectory) for trajectory in again]))
        tell("  control: answers of the old weights", differences(policy, some))
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
