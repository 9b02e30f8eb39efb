"""Trained turns a second at full size: the trainer as it runs, against one padded sequence a turn, in the same process.

    python benchmarks/training_gpu.py [--sizes 2B 4B 8B] [--rows 4 2 1] [--gspo 4B] [--tiny]
    accelerate launch --multi_gpu --num_processes 2 benchmarks/training_gpu.py --sizes 8B --rows 1

Weights are random in the published architectures: speed does not need trained ones. A trajectory has 8 turns with
a 1280 x 720 screenshot each, about 8,500 tokens. Language model and head are trained in bfloat16 with AdamW states in
bfloat16, the vision tower is frozen in both ways.

*flywheel* is `train_sft` with the settings of the `single-gpu` profile: screenshots come as PNG and are decoded while
it trains, every one is looked at once (no screenshot comes twice, as in a first epoch), losses are weighed, gradients
clipped, curves written. The *baseline* does what most trainers do: every turn is a sequence of its own with up to four
past screenshots, padded to the longest of its batch, full logits, gradient checkpointing, transformers' own forward
pass; its pixels are prepared before the clock runs, and the fastest of a few batch sizes counts.

MFU counts what must be computed once (causal attention by half, the frozen tower forward only, no recomputation)
against the matrix product measured in the same process. `--tiny` runs all of it on a CPU in a minute, to no figure.
Under a launcher the weights are sharded, with float32 master weights and AdamW states, and there is no baseline.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from accelerate import PartialState
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from flywheel.chat import Chat
from flywheel.config import Config, load_config
from flywheel.modeling.policy import make_chat
from flywheel.modeling.processor import build_processor
from flywheel.modeling.qwen import prepare
from flywheel.modeling.tokenizer import build_tokenizer
from flywheel.sections import Held
from flywheel.testing import desktop, random_trajectory
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.ensemble import Ensemble
from flywheel.trainers.learner import Learner
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.sft import train_sft
from flywheel.trainers.tuning import tuned
from flywheel.types import PolicyRef, Screenshot, Size, TrainingSample

TURNS, PAST = 8, 4
WARM, TIMED = 2, 3
TOGETHER = (1, 2, 4)
"""Sequences of the baseline that go through the model at once; the fastest counts."""
SYSTEM, ASKED, SAID = 500, 60, 63
"""Tokens of the system prompt, of a user turn beside its picture, and of an answer (give or take a third)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A published architecture. `vision`: depth, width, feed-forward, heads, layers of deepstack."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    tied: bool
    vision: tuple[int, int, int, int, tuple[int, ...]]
    vocabulary: int = 151_936
    head_dim: int = 128


_LARGE, _LARGEST = (24, 1024, 4096, 16, (5, 11, 17)), (27, 1152, 4304, 16, (8, 16, 24))
SHAPES = {
    "2B": Shape(2048, 28, 16, 8, 6144, True, _LARGE),
    "4B": Shape(2560, 36, 32, 8, 9728, True, _LARGE),
    "8B": Shape(4096, 36, 32, 8, 12288, False, _LARGEST),
    "tiny": Shape(64, 2, 2, 1, 128, True, (2, 64, 128, 2, (0,)), 4096, 32),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs: device, dtype, and the screen that is seen."""

    device: str
    dtype: torch.dtype
    screen: Size


class Clock:
    """A trainer's report that notes when each step ended, and writes the curve as a job does."""

    def __init__(self, folder: Path) -> None:
        self.ends: list[float] = []
        self.points: list[dict[str, float]] = []
        self._file = (folder / "metrics.jsonl").open("a")

    def advance(self, done: int, total: int, unit: str) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        self.ends.append(time.perf_counter())
        self.points.append(dict(values))


def model_of(shape: Shape, place: Place, chat: Chat, seed: int = 0) -> Any:
    """Random weights of a shape, with the ids of the benchmark's own tokenizer."""
    depth, width, mlp, heads, deepstack = shape.vision
    half = shape.head_dim // 2
    section = half * 20 // 64
    to_id = chat.processor.tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.mlp,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": 262_144,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [half - 2 * section, section, section],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": shape.tied,
        },
        vision_config={
            "depth": depth,
            "hidden_size": width,
            "intermediate_size": mlp,
            "num_heads": heads,
            "out_hidden_size": shape.hidden,
            "num_position_embeddings": 48**2,
            "deepstack_visual_indexes": list(deepstack),
        },
        image_token_id=to_id("<|image_pad|>"),
        video_token_id=to_id("<|video_pad|>"),
        vision_start_token_id=to_id("<|vision_start|>"),
        vision_end_token_id=to_id("<|vision_end|>"),
        tie_word_embeddings=shape.tied,
    )
    torch.manual_seed(seed)
    torch.set_default_dtype(place.dtype)
    try:
        with torch.device(place.device):
            model: Any = Qwen3VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return prepare(model)


def trajectories(chat: Chat, screen: Size, count: int, *, turns: int = TURNS, seed: int = 0) -> list[TrainingSample]:
    """Documents of random words and desktops; no two screenshots are the same."""
    rng = np.random.default_rng(seed)
    pixels = desktop(rng, screen)
    made = []
    for number in range(count):
        ids, trained, images = rng.integers(10, 250, SYSTEM).tolist(), [False] * SYSTEM, []
        for _ in range(turns):
            x, y = rng.integers(0, screen.width - 32), rng.integers(0, screen.height - 32)
            pixels[y : y + 32, x : x + 32] = rng.integers(0, 256, (32, 32, 3))
            images.append(Screenshot.from_array(pixels).encode())
            t, h, w = chat.grid(screen)
            asked, said = ASKED, SAID + int(rng.integers(-SAID // 3, SAID // 3))
            ids += [chat.image_id] * (t * h * w // 4) + rng.integers(10, 250, asked + said).tolist()
            trained += [False] * (t * h * w // 4 + asked) + [True] * said
        mask = np.array(trained)
        logprobs = np.where(mask, -11.9, 0).astype(np.float32)
        made.append(
            TrainingSample(
                trajectory_id=f"made-{number}",
                group_id=f"group-{number // 8}",
                input_ids=np.array(ids, np.int64),
                train_mask=mask,
                logprobs=logprobs,
                weights=mask.astype(np.float32),
                images=tuple(images),
                image_grids=(chat.grid(screen),) * turns,
            )
        )
    return made


# --- what must be computed ------------------------------------------------------------------------------------------


def operations(model: Any, sample: TrainingSample) -> float:
    """Floating-point operations to train on one document once, the vision tower frozen."""
    text, vision = model.config.text_config, model.config.vision_config
    n, trained = len(sample.input_ids), int(sample.train_mask.sum())
    layers = sum(parameter.numel() for parameter in model.model.language_model.layers.parameters())
    attention = 2 * n**2 * text.num_attention_heads * text.head_dim * text.num_hidden_layers
    head = 2 * trained * text.vocab_size * text.hidden_size
    language = 3 * (2 * layers * n + attention + head)
    tower = sum(p.numel() for p in model.model.visual.blocks.parameters())
    merged = sum(p.numel() for name, p in model.model.visual.named_parameters() if "merger" in name)
    seen = 0.0
    for t, h, w in sample.image_grids:
        patches = t * h * w
        seen += 2 * tower * patches + 2 * merged * patches / 4 + 4 * patches**2 * vision.hidden_size * vision.depth
    return language + seen


def measured_peak(place: Place) -> float:
    """Operations a second of a large product of random matrices, median of 10."""
    if place.device != "cuda":
        return float("nan")
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * 8192**3 / float(np.median(times))


# --- the two ways ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """Turns a second, achieved operations a second, and the peak of memory in GiB."""

    turns: float
    operations: float
    memory: float


def settings_of(place: Place, rows: int, sample: TrainingSample, home: str, batch: int, held: str = "layer") -> Config:
    """The `single-gpu` profile with `rows` trajectories in a packed row."""
    bucket = 512 if place.device == "cuda" else 64
    return load_config(
        "single-gpu" if place.device == "cuda" else "embedded",
        [
            f"home={home}",
            f"sft.batch={batch}",
            f"sft.held={held}",
            f"sft.pack_tokens={rows * (len(sample.input_ids) + 128)}",
            f"model.bucket={bucket}",
            f"model.compile={place.device == 'cuda'}",
        ],
    )


def ours(
    model: Any, chat: Chat, place: Place, rows: int, batch: int, *, held: str = "layer", checkpointing: bool = False
) -> Measured:
    """`train_sft` over documents that it has never seen."""
    samples = trajectories(chat, place.screen, batch * (WARM + TIMED), seed=rows)
    with tempfile.TemporaryDirectory() as home:
        config = settings_of(place, rows, samples[0], home, batch, held)
        model_config = config.model.model_copy(update={"checkpointing": checkpointing})
        policy, clock = tuned(model, chat, model_config), Clock(Path(home))
        _forget_peak(place)
        train_sft(policy, samples, config.sft, steps=WARM + TIMED, seed=0, states=Path(home) / "states", report=clock)
    steps = np.diff(clock.ends)
    seconds = float(np.median(steps[WARM - 1 :]))  # a row of a length not met before is compiled for, once
    done = float(np.mean([operations(model, sample) for sample in samples])) * batch
    _say(f"  steps took {steps.round(2).tolist()} s, losses {[round(point['loss'], 4) for point in clock.points]}")
    return Measured(batch * TURNS / seconds, done / seconds, _peak_memory(place))


def windows(sample: TrainingSample, image_id: int) -> list[TrainingSample]:
    """One sequence for each turn: all words so far, the last screenshot and up to `PAST` before it."""
    per_image = int((sample.input_ids == image_id).sum()) // len(sample.images)
    edges = np.flatnonzero(np.diff(sample.train_mask.astype(int), append=0))
    starts, ends = edges[::2] + 1, edges[1::2] + 1
    made = []
    for turn, (start, end) in enumerate(zip(starts, ends, strict=True)):
        ids, weights = sample.input_ids[:end], np.zeros(end, np.float32)
        weights[start:] = 1
        dropped = max(0, turn - PAST)
        keep = np.ones(end, bool)
        keep[np.flatnonzero(ids == image_id)[: dropped * per_image]] = False
        images = sample.images[dropped : turn + 1]
        made.append(replace(sample, input_ids=ids[keep], weights=weights[keep], images=images))
    return made


def baseline(model: Any, chat: Chat, place: Place, *, together: int, batch: int = 1) -> Measured:
    """A padded sequence a turn through transformers' own forward pass, `together` at once."""
    model.model.visual.requires_grad_(False)
    model.model.language_model.config._attn_implementation = "sdpa"
    model.model.language_model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=1e-6, fused=place.device == "cuda")
    samples = trajectories(chat, place.screen, batch, seed=99)
    turns = [turn for sample in samples for turn in windows(sample, chat.image_id)]
    inputs = [_padded(turns[at : at + together], chat, place) for at in range(0, len(turns), together)]
    count = sum(float(turn.weights.sum()) for turn in turns)
    read = sum(x["input_ids"].numel() for x in inputs)

    def step(parts: Sequence[dict[str, torch.Tensor]]) -> None:
        for part in parts:
            given = {name: value.to(place.device) for name, value in part.items()}
            labels = given.pop("labels")
            logits = model(**given).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits.float(), labels[:, 1:].flatten(), reduction="sum") / count
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimiser.step()
        optimiser.zero_grad()

    step(inputs[-1:])
    _forget_peak(place)
    seconds = min(_timed(place, lambda: step(inputs))[1] for _ in range(2))
    done = sum(operations(model, _as_trained(turn)) for turn in turns)
    print(f"  {read} tokens read for {batch} trajectories in {seconds:.1f} s", flush=True)
    model.model.language_model.gradient_checkpointing_disable()
    return Measured(batch * TURNS / seconds, done / seconds, _peak_memory(place))


def _as_trained(turn: TrainingSample) -> TrainingSample:
    return replace(turn, train_mask=turn.weights > 0, image_grids=turn.image_grids[: len(turn.images)])


def _padded(turns: Sequence[TrainingSample], chat: Chat, place: Place) -> dict[str, torch.Tensor]:
    width = max(len(turn.input_ids) for turn in turns)
    ids_BT = torch.full((len(turns), width), chat.end_id)
    labels_BT = torch.full((len(turns), width), -100)
    mask_BT = torch.zeros((len(turns), width), dtype=torch.long)
    for b, turn in enumerate(turns):
        ids = torch.from_numpy(turn.input_ids)
        ids_BT[b, : len(ids)], mask_BT[b, : len(ids)] = ids, 1
        labels_BT[b, : len(ids)] = torch.where(torch.from_numpy(turn.weights) > 0, ids, -100)
    images = [shot.image().resize(chat.model_size(shot.size)) for turn in turns for shot in turn.images]
    pixels = chat.processor.image_processor(images, return_tensors="pt")
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "labels": labels_BT,
        "mm_token_type_ids": (ids_BT == chat.image_id).int(),
        "pixel_values": pixels["pixel_values"].to(place.dtype),
        "image_grid_thw": pixels["image_grid_thw"],
    }


# --- policy gradient and exactness -----------------------------------------------------------------------------------


def gspo(model: Any, chat: Chat, place: Place, count: int, rows: int) -> None:
    """One GSPO update: logprobs of all trajectories without gradient, then the optimiser's step, then the hand-over."""
    samples = trajectories(chat, place.screen, count, seed=7)
    with tempfile.TemporaryDirectory() as home:
        config = settings_of(place, rows, samples[0], home, count)
        policy = tuned(model, chat, config.model)
        settings = {"pack_tokens": config.sft.pack_tokens, "horizon": TURNS * SAID * 2, "seed": 0}
        learner = Learner(policy, config.rl, Ensemble(), start=partial(tuned, model, chat, config.model), **settings)
        trainer = PolicyGradient(learner, Path(home) / "states")
        times, played = {}, random_trajectory("made", turns=1)
        _scored(policy, samples[: 2 * rows], rows)
        scored, times["logprobs"] = _timed(place, lambda: _scored(policy, samples, rows))
        rollouts = [Rollout(played, sample, float(i % 2)) for i, sample in enumerate(scored)]
        _, times["update"] = _timed(place, lambda: trainer.update(rollouts, trainer.credit(rollouts)))
        folder = Path(home) / "policy"
        handed = PolicyRef("gspo", str(folder))
        _, times["hand-over: saved to disk"] = _timed(place, lambda: save_policy(model, chat.processor, handed, folder))
    print(f"GSPO, {count} trajectories of {TURNS} turns, {_peak_memory(place):.0f} GiB:")
    for name, seconds in times.items():
        print(f"  {name:<28}{seconds:8.1f} s{count * TURNS / seconds:10.1f} turns/s", flush=True)


def _scored(policy: PolicyModel, samples: Sequence[TrainingSample], rows: int) -> list[TrainingSample]:
    """The samples with the logprobs of the present weights."""
    scored = []
    with torch.no_grad():
        for at in range(0, len(samples), rows):
            part = samples[at : at + rows]
            policy.expect(samples[at + rows : at + 2 * rows])
            logp_K = policy.logprobs(policy.pack(part)).float().cpu().numpy()
            for sample in part:
                count = int(sample.train_mask.sum())
                logprobs = np.zeros(len(sample.input_ids), np.float32)
                logprobs[sample.train_mask], logp_K = logp_K[:count], logp_K[count:]
                scored.append(replace(sample, logprobs=logprobs))
    return scored


def exactness(chat: Chat, place: Place) -> float:
    """Relative difference of gradients, packed against one document a row, float32, four layers of the 2B."""
    full = SHAPES["2B" if place.device == "cuda" else "tiny"]
    shape = replace(full, layers=min(4, full.layers), vision=(2, *full.vision[1:4], (0,)))
    model = model_of(shape, replace(place, dtype=torch.float32), chat)
    samples = trajectories(chat, place.screen, 3, turns=2, seed=5)
    policy = PolicyModel(model, chat, bucket=512)

    def gradient(parts: Sequence[Sequence[TrainingSample]]) -> torch.Tensor:
        model.zero_grad()
        for part in parts:
            (-policy.logprobs(policy.pack(part)).sum()).backward()
        return torch.cat([p.grad.flatten().cpu() for p in policy.trainable if p.grad is not None]).double()

    apart, together = gradient([[sample] for sample in samples]), gradient([samples])
    return float((together - apart).norm() / apart.norm())


# --- inside ----------------------------------------------------------------------------------------------------------


def _timed(place: Place, work: Any) -> tuple[Any, float]:
    _synchronize(place)
    started = time.perf_counter()
    found = work()
    _synchronize(place)
    return found, time.perf_counter() - started


def _synchronize(place: Place) -> None:
    if place.device == "cuda":
        torch.cuda.synchronize()


def _forget_peak(place: Place) -> None:
    gc.collect()
    if place.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_memory(place: Place) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if place.device == "cuda" else 0.0


def _say(line: str) -> None:
    if PartialState().is_main_process:
        print(line, flush=True)


def _report(name: str, found: Measured, peak: float, against: Measured | None) -> None:
    ratio = f"{found.turns / against.turns:8.1f}x" if against else ""
    share = found.operations / peak / PartialState().num_processes
    _say(f"{name:<46}{found.turns:8.2f} turns/s{share:8.0%} MFU{found.memory:8.0f} GiB{ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="*", default=["2B", "4B", "8B"], choices=sorted(SHAPES))
    parser.add_argument("--rows", nargs="*", type=int, default=[4, 2, 1], help="trajectories in a row, one a size")
    parser.add_argument("--batch", type=int, default=16, help="trajectories a step")
    parser.add_argument("--held", default="layer", choices=get_args(Held), help="`sft.held`, under a launcher")
    parser.add_argument("--gspo", default="", help="size whose GSPO update is measured")
    parser.add_argument("--trajectories", type=int, default=64, help="trajectories of that update")
    parser.add_argument("--no-baseline", action="store_true", help="leave baseline and exactness out")
    parser.add_argument("--tiny", action="store_true", help="all of it on a CPU with a tiny shape")
    arguments = parser.parse_args()
    if arguments.tiny or not torch.cuda.is_available():
        place = Place("cpu", torch.float32, Size(160, 128))
        arguments.sizes, arguments.rows, arguments.gspo, arguments.trajectories = ["tiny"], [2], "tiny", 8
    else:
        place = Place("cuda", torch.bfloat16, Size(1280, 720))
    chat = make_chat(load_config("single-gpu"), build_processor(build_tokenizer([], [], 0)))
    PartialState(cpu=place.device == "cpu")
    alone = not torch.distributed.is_initialized()
    compared = alone and not arguments.no_baseline
    if compared:
        _say(f"packed against unpacked gradients, float32: {exactness(chat, place):.1e} relative")
    peak = measured_peak(place)
    _say(f"peak: {peak / 1e12:.0f} TFLOP/s in bfloat16")
    for size, rows in zip(arguments.sizes, arguments.rows, strict=False):
        model = model_of(SHAPES[size], place, chat)
        against = None
        if compared:
            tried = {n: baseline(model, chat, place, together=n) for n in TOGETHER}
            for together, found in tried.items():
                _report(f"{size} baseline: {together} padded sequences at once", found, peak, None)
            against = max(tried.values(), key=lambda found: found.turns)
        found = ours(model, chat, place, rows, arguments.batch, held=arguments.held)
        _report(f"{size} flywheel: {rows} trajectories a row", found, peak, against)
        if alone and size == arguments.gspo:
            gspo(model, chat, place, arguments.trajectories, rows)
        del model
        gc.collect()
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
