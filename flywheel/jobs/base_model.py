"""The base policy: the hub's model as it is, or a tiny one built and pre-trained on the spot."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flywheel.actions.computer_use import ComputerUse
from flywheel.config import Config
from flywheel.envs.simulated.vocabulary import ALL_WORDS
from flywheel.jobs.base import Progress
from flywheel.jobs.tasks import OFFLINE
from flywheel.jobs.threads import use_threads
from flywheel.modeling.build import build_model
from flywheel.modeling.policy import make_chat
from flywheel.modeling.processor import CHAT_TEMPLATE, build_processor, load_processor
from flywheel.modeling.qwen import load_model
from flywheel.modeling.tokenizer import build_tokenizer, fixed_phrases
from flywheel.packs.offline.pack import pack_tasks
from flywheel.seeds import derive_seed
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.grounding import train_grounding, train_vision
from flywheel.trainers.model import fingerprint
from flywheel.types import Action, Click, Done, Drag, Key, PolicyRef, Scroll, Size, Type

PACK_TASKS = 200
"""Tasks of the offline pack whose words the tokenizer learns."""
HOLE = "@@"
"""Stands for a word while the fixed pieces of completions are cut out; no key, so `ctrl s` gets its hole afterwards."""


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: out. Returns the policy, what was measured on the way, and seconds."""
    started = time.perf_counter()
    use_threads(config)
    build = _build_tiny if config.model.base == "tiny" else _load_given
    model, processor, metrics = build(config, progress)
    policy = PolicyRef("base", args["out"], None, fingerprint(model.parameters()))
    save_policy(model, processor, policy, Path(args["out"]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    metrics = {**metrics, "parameters": parameters, "vocabulary": len(processor.tokenizer)}
    return {"policy": asdict(policy), "metrics": metrics, "seconds": time.perf_counter() - started}


def _load_given(config: Config, progress: Progress) -> tuple[Any, Any, dict[str, float]]:
    progress.log(f"Loading {config.model.base}.")
    return load_model(config.model.base, dtype=config.model.dtype), load_processor(config.model.base), {}


def _build_tiny(config: Config, progress: Progress) -> tuple[Any, Any, dict[str, float]]:
    sizes = config.model.tiny
    words = (*ALL_WORDS, *(_pack_words() if config.tasks.source == OFFLINE else ()))
    processor = offline_processor(sizes.merges, words)
    chat = make_chat(config, processor)
    screen = chat.model_size(Size(config.env.width, config.env.height))
    seed = derive_seed(config.seed, "base")
    model = build_model(processor.tokenizer, sizes, seed)
    captions = train_vision(model, chat, screen, sizes, seed, progress)
    progress.log(f"Vision pre-training: {captions:.1%} of captions read.")
    numbers = train_grounding(model, chat, screen, sizes, seed, progress, words)
    progress.log(f"Grounding: {numbers:.1%} of cells and coordinates said.")
    return model, processor, {"caption_accuracy": captions, "grounding_accuracy": numbers}


def _pack_words() -> list[str]:
    """What tasks of the offline pack say and have typed. Training tasks only; the splits draw on the same words."""
    steps = [(task.instruction, step) for task in pack_tasks("train", PACK_TASKS) for step in task.raw["solution"]]
    texts = [f"{said} {step['thinking']} {step['brief']} {step['action'].get('text', '')}" for said, step in steps]
    return sorted(set(re.findall(r"[A-Za-z]+", " ".join(texts))).difference(ALL_WORDS))


def offline_processor(merges: int, words: Sequence[str] = ALL_WORDS) -> Any:
    """A processor whose tokenizer knows `words` and holds fixed text as single tokens."""
    space = ComputerUse()
    bare = build_processor(build_tokenizer([], [], 0))
    bare.chat_template = CHAT_TEMPLATE.read_text()
    system = {"role": "system", "content": space.system_prompt()}
    prompt = bare.apply_chat_template([system], tools=space.tools(), tokenize=False)
    completions = list(_example_completions(space))
    phrases = fixed_phrases([prompt], completions, HOLE)
    line = " ".join(words)
    sections = (
        "[Task]\n[Last Action Result]\n[Domain]\n[Terminal Output]\n[Accessibility Tree]\nassistant\nuser\nsystem\n"
    )
    corpus = [f" {line} {line.lower()}", *words, sections, prompt]
    # Repeated, so that whole words win over pieces that happen to be frequent in the tool's description.
    return build_processor(build_tokenizer(corpus[:-1] * 20 + corpus, phrases, merges))


def _example_completions(space: ComputerUse) -> Iterator[str]:
    """One completion of each kind, with holes where words go; numbers fall out by themselves."""
    screen = Size(1000, 1000)
    actions: list[Action] = [
        Click(1, 1),
        Click(1, 1, "right"),
        Click(1, 1, count=2),
        Drag(9, 9, (1, 1)),
        Scroll(dy=-1, x=1, y=1),
        Scroll(dy=1, x=1, y=1),
        Type(HOLE),
        Key(("ctrl", "s")),
        Key(("enter",)),
        Done("success"),
        Done("failure"),
    ]
    for action in actions:
        yield space.format(action, screen, thinking=HOLE, brief=HOLE).replace('"s"', f'"{HOLE}"')
