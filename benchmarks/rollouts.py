"""Environment steps a second of the local engine, against transformers' `generate` once a turn, in the same process.

    python benchmarks/rollouts.py [--episodes 256] [--concurrency 64] [--threads 1] [--teach 60]

Both ways play the same tasks on simulated desktops with the same policy, at temperature 1. It is taught for a few steps
first, because a policy that has learned nothing babbles up to the limit of tokens; steps an episode and tokens a step
show that both play alike. The baseline moves all desktops in step: each turn it tokenises nothing again, but hands the
whole conversation, pixels and all, to `generate`, left-padded.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from training import Lessons, Silent, prepare
from transformers import Qwen3VLForConditionalGeneration

from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import plan, play
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.sft import train_sft
from flywheel.types import Done, Observation, PolicyRef, Screenshot, Size, Trajectory


@dataclass
class Played:
    """What a way did."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Talk:
    """One conversation of the baseline."""

    spec: EpisodeSpec
    env: SimulatedEnv
    seen: Observation
    ids: list[int] = field(default_factory=list)
    shots: list[Screenshot] = field(default_factory=list)
    going: bool = True


def engine(lessons: Lessons, specs: list[EpisodeSpec], concurrency: int) -> Played:
    agent = LocalAgent(lessons.model.eval(), lessons.chat, PolicyRef("taught", str(lessons.folder / "policy")))
    played: list[Trajectory] = []
    started = time.perf_counter()
    asyncio.run(
        play(
            specs,
            agent,
            lessons.chat.space,
            lambda: desktop(lessons),
            concurrency=concurrency,
            on_trajectory=played.append,
        )
    )
    seconds = time.perf_counter() - started
    turns = [turn for trajectory in played for turn in trajectory.turns]
    tokens = sum(len(turn.completion_ids) for turn in turns)
    return Played(len(turns), tokens, seconds)


def desktop(lessons: Lessons) -> SimulatedEnv:
    return SimulatedEnv(Size(lessons.config.env.width, lessons.config.env.height), lessons.config.env.layout)


def generate(lessons: Lessons, specs: list[EpisodeSpec], concurrency: int) -> Played:
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(str(lessons.folder / "policy"), dtype=torch.float32)
    torch.manual_seed(0)
    total, started = Played(), time.perf_counter()
    for at in range(0, len(specs), concurrency):
        asyncio.run(_together(lessons, model.eval(), specs[at : at + concurrency], total))
    total.seconds = time.perf_counter() - started
    return total


async def _together(lessons: Lessons, model: Any, specs: list[EpisodeSpec], total: Played) -> None:
    talks = []
    for spec in specs:
        env = desktop(lessons)
        talks.append(Talk(spec, env, await env.reset(spec.task)))
    for turn in range(specs[0].max_turns):
        going = [talk for talk in talks if talk.going]
        for talk in going:
            write = lessons.chat.next if turn else lessons.chat.first
            talk.ids += write(talk.spec.task, talk.seen).ids
            talk.shots.append(talk.seen.screenshot)  # type: ignore[arg-type]
        for talk, answer in zip(going, _answers(lessons, model, going) if going else [], strict=True):
            talk.ids += answer
            total.steps += 1
            total.tokens += len(answer)
            parsed = lessons.chat.space.parse(lessons.chat.decode(answer), talk.env.capabilities.screen)
            if parsed.action is None:
                talk.seen = Observation(talk.seen.screenshot, last_result=parsed.error)
                continue
            talk.seen = (await talk.env.step(parsed.action)).observation
            talk.going = not isinstance(parsed.action, Done)
    for talk in talks:
        await talk.env.evaluate()
        await talk.env.close()


def _answers(lessons: Lessons, model: Any, talks: list[Talk]) -> list[list[int]]:
    chat = lessons.chat
    whole = [chat.expand(talk.ids, [chat.grid(shot.size) for shot in talk.shots]) for talk in talks]
    width = max(len(ids) for ids in whole)
    ids_BT = torch.full((len(talks), width), chat.end_id)
    mask_BT = torch.zeros_like(ids_BT)
    for b, ids in enumerate(whole):
        ids_BT[b, width - len(ids) :], mask_BT[b, width - len(ids) :] = torch.from_numpy(ids), 1
    images = [shot.image() for talk in talks for shot in talk.shots]
    pixels = chat.processor.image_processor(images, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            mm_token_type_ids=(ids_BT == chat.image_id).int(),
            pixel_values=pixels["pixel_values"],
            image_grid_thw=pixels["image_grid_thw"],
            max_new_tokens=lessons.config.rollout.max_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            suppress_tokens=list(chat.forbidden_ids),
            eos_token_id=chat.end_id,
            pad_token_id=chat.end_id,
        )
    answers = out[:, width:].tolist()
    return [answer[: answer.index(chat.end_id) + 1] if chat.end_id in answer else answer for answer in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--concurrency", type=int, default=64, help="desktops played at once")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--teach", type=int, default=60, help="optimiser steps before the clock runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lessons = prepare(Path(folder), arguments.threads)
        policy, states = PolicyModel(lessons.model, lessons.chat), lessons.folder / "states"
        steps = arguments.teach
        train_sft(policy, lessons.documents, lessons.config.sft, steps=steps, seed=0, states=states, report=Silent())
        taught = PolicyRef("taught", str(lessons.folder / "policy"))
        save_policy(lessons.model, lessons.chat.processor, taught, lessons.folder / "policy")
        size = Size(lessons.config.env.width, lessons.config.env.height)
        tasks = generate_tasks(split="train", count=arguments.episodes, seed=1, screen=size, levels=(1, 2))
        specs = plan(lessons.config, tasks, partition="bench", samples=1, temperature=1.0, max_turns=8)
        ways = {"flywheel: local engine": engine, "baseline: transformers' generate a turn": generate}
        print(f"{'':<42}{'steps/s':>10}{'tokens/s':>10}{'steps/episode':>15}{'tokens/step':>13}{'seconds':>9}")
        rates = []
        for name, way in ways.items():
            found = way(lessons, specs, arguments.concurrency)
            rates.append(found.steps / found.seconds)
            print(f"{name:<42}{rates[-1]:>10,.0f}{found.tokens / found.seconds:>10,.0f}", end="")
            print(f"{found.steps / len(specs):>15.1f}{found.tokens / found.steps:>13.1f}{found.seconds:>9.1f}")
        print(f"{rates[0] / rates[1]:.1f} times the baseline in environment steps a second.")


if __name__ == "__main__":
    main()
