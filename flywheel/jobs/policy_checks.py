"""Preflight of a policy: what it writes is read, what it sees arrives, and trainer and engine mean the same numbers.

Each of these is a defect that trains without an error until somebody looks: a stop tag trimmed off every action,
coordinates on the wrong scale, a model that gets no pixels, logprobs that differ between sampling and training.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.actions.base import ActionSpace
from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.envs.base import Env
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import ActionError
from flywheel.jobs.findings import Finding, judged
from flywheel.modeling.features import patches
from flywheel.types import (
    Action,
    Click,
    Done,
    Drag,
    Key,
    Move,
    Screenshot,
    Scroll,
    Size,
    Task,
    TrainingSample,
    Type,
    Wait,
)

ACTIONS: tuple[Action, ...] = (
    Click(40, 60),
    Click(40, 60, "right"),
    Click(40, 60, count=2),
    Click(40, 60, count=3),
    Move(40, 60),
    Drag(90, 30, (40, 60)),
    Scroll(dy=-1, x=40, y=60),
    Type("a <b> & c"),
    Key(("ctrl", "s")),
    Wait(1.0),
    Done("success"),
    Done("failure"),
)
SCREENS = (Size(160, 128), Size(1280, 720), Size(1920, 1080))
GRID = 1000
"""Steps of the coarsest grid that a space may write coordinates on."""
Logprobs = Callable[[Sequence[TrainingSample]], Tensor]
"""Documents of one packed row -> logprobs of their trained tokens under the trainer, in order, (K,)."""


def accelerator(device: str) -> Finding:
    """A GPU is seen, or not; only a profile that asks for one fails without."""
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        return Finding("accelerator", True, f"{found.name}, {found.total_memory / 1e9:.0f} GB")
    mend = "install a driver and a CUDA build of torch, or take --set model.device=auto."
    return judged("accelerator", not device.startswith("cuda"), f"no GPU is seen (model.device={device})", mend)


def parser_round_trip(space: ActionSpace, chat: Chat) -> Finding:
    """Every action that the space can say comes back from text and from tokens, stop tag and all."""
    said = wrong = 0
    example = ""
    for action in ACTIONS:
        try:
            text = space.format(action, SCREENS[0], thinking="look", brief="act")
        except ActionError:
            continue
        said += 1
        heard = chat.decode((*chat.tokenise(text), chat.end_id))
        parsed = space.parse(heard, SCREENS[0])
        if heard != text or parsed.fallback or parsed.action != action:
            wrong += 1
            example = f"; {text[-24:]!r} came back as {heard[-24:]!r}, {parsed.action}"
    detail = f"{said - wrong} of {said} actions come back whole, {space.stop or 'no stop tag'} included{example}"
    return judged(
        "parser", said > 0 and not wrong, detail, "the tokenizer or the action space drops text; mend it there."
    )


def coordinate_scale(space: ActionSpace) -> Finding:
    """A pixel that is written and read again is the same pixel, within one step of the space's grid."""
    worst = 0.0
    mend = "clicks would land elsewhere; mend the scale of the action space."
    for screen in SCREENS:
        for x, y in ((0, 0), (screen.width // 3, screen.height // 2), (screen.width - 1, screen.height - 1)):
            try:
                action = space.parse(space.format(Click(x, y), screen), screen).action
            except ActionError:
                return Finding("coordinates", True, f"{space.id} has none")
            if not isinstance(action, Click):
                return Finding("coordinates", False, f"a click at ({x}, {y}) is read as {action}", mend)
            steps = max(abs(action.x - x) * GRID / screen.width, abs(action.y - y) * GRID / screen.height)
            worst = max(worst, steps if (action.x, action.y) != (x, y) else 0.0)
    return judged("coordinates", worst <= 1.0, f"pixel to text to pixel, off by at most {worst:.2g} grid steps", mend)


def failure_reaches_evaluator(config: Config, make_env: Callable[[], Env]) -> Finding:
    """Giving up scores 1 on a task that cannot be done, and 0 on one that can."""
    screen = Size(config.env.width, config.env.height)
    families = ("infeasible", "click")
    tasks = generate_tasks(
        split="train",
        count=2,
        seed=config.seed,
        screen=screen,
        layout=config.env.layout,
        families=families,
        levels=(1,),
    )
    scores = tuple(asyncio.run(_give_up(make_env(), task)) for task in tasks)
    detail = f"FAIL scores {scores[0]:.0f} on an infeasible task, {scores[1]:.0f} on a feasible one"
    return judged("failure", scores == (1.0, 0.0), detail, "the environment must pass Done to the checker.")


async def _give_up(env: Env, task: Task) -> float:
    try:
        await env.reset(task)
        await env.step(Done("failure"))
        return await env.evaluate()
    finally:
        await env.close()


def processor_gives_pixels(processor: Any, chat: Chat, image: Screenshot) -> Finding:
    """The processor has an image half, and our patches are the pixels that it gives.

    `AutoProcessor` without torchvision silently returns a bare tokenizer, and a model loaded with that is blind.
    """
    images = getattr(processor, "image_processor", None)
    kind = type(processor).__name__
    mend = "load it with flywheel.modeling.processor.load_processor, which assembles both halves."
    if images is None:
        return Finding("processor", False, f"{kind} has no image processor, so the model would see nothing", mend)
    shown = image.image().resize(chat.model_size(image.size))
    theirs = np.asarray(images([shown], do_resize=False, return_tensors="np")["pixel_values"])
    ours, _ = patches([Screenshot.from_array(np.asarray(shown))], chat)
    # A still image fills every temporal slot of a patch with the same pixels; ours holds one of them.
    slots = theirs.reshape(len(theirs), 3, -1, ours.shape[1] // 3)
    worst = float(np.abs(slots - ours.reshape(len(ours), 3, 1, -1)).max())
    return judged("processor", worst < 1e-5, f"{kind}, pixels off by {worst:.1g} from its own", mend)


def pixels_reach_model(samples: Sequence[TrainingSample], logprobs: Logprobs) -> Finding:
    """Other screenshots give other logprobs for the same text."""
    sample = samples[0]
    changed = tuple(Screenshot.from_array(255 - image.array()) for image in sample.images)
    difference = (logprobs([sample]) - logprobs([replace(sample, images=changed)])).abs().max()
    mend = "the model is blind: look at the processor and the image tokens of the prompt."
    return judged("pixels", bool(difference > 0), f"inverted screenshots move logprobs by up to {difference:.2g}", mend)


def logprobs_agree(samples: Sequence[TrainingSample], logprobs: Logprobs, limit: float) -> Finding:
    """The trainer's forward pass gives the logprobs that the engine recorded while sampling, in nats."""
    worst = max(float((logprobs([s]) - torch.from_numpy(s.logprobs[s.train_mask])).abs().max()) for s in samples)
    images = max(len(sample.images) for sample in samples)
    tokens = sum(int(sample.train_mask.sum()) for sample in samples)
    detail = f"trainer and engine differ by at most {worst:.2g} over {tokens} tokens, up to {images} images in context"
    mend = f"above {limit:g} importance weights are noise: compare dtypes, attention and image sizes of the two."
    return judged("logprobs", worst < limit, detail, mend)


def packed_as_separate(samples: Sequence[TrainingSample], logprobs: Logprobs, limit: float) -> Finding:
    """Documents in one packed row do not see each other."""
    apart = torch.cat([logprobs([sample]) for sample in samples])
    worst = float((logprobs(samples) - apart).abs().max())
    detail = f"{len(samples)} documents packed and apart differ by at most {worst:.2g}"
    return judged("packing", worst < limit, detail, "documents leak into each other: check position ids and attention.")
