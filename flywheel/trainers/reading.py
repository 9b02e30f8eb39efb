"""Reading lessons: training rows again, told their solution in the words of SDPO's hindsight.

A hub model reads a solution in its prompt; a tiny one knows only what it was trained on, and is disturbed. So its
fine-tuning shows it rows whose system turn ends with their own answers (`hindsight.solution`) while the screens are
those of another row: reading is then the only way to be right. With their own screens it reads little, for it knows the
rows by heart. Mean log-likelihood (nats) of whole rows, without hindsight -> with, on tasks that the policy both solved
and failed (embedded profile, seed 1, SFT and one iteration):

    lessons                      a solution         a failure
    none                         -3.4 -> -26.1      -10.8 -> -37.4
    0.4, with their own screens  -3.8 ->  -3.9       -7.4 -> -12.0
    0.4                          -1.4 ->  -0.6       -6.2 -> -12.7
    0.5, twice the steps         -1.8 ->  -0.4       -3.9 -> -13.5
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flywheel.chat import Chat
from flywheel.seeds import derive_seed
from flywheel.trainers.hindsight import solution, with_hindsight
from flywheel.trainers.steps import steps_in
from flywheel.types import TrainingSample


def reading_lessons(samples: Sequence[TrainingSample], chat: Chat, *, share: float, seed: int) -> list[TrainingSample]:
    """So many of the samples, told their solution, that they are `share` of both together; drawn without replacement
    as long as there are enough, the same for the same seed."""
    count = round(len(samples) * share / (1 - share))
    random = np.random.default_rng(derive_seed(seed, "reading"))
    rounds = [random.permutation(len(samples)) for _ in range(-(-count // max(len(samples), 1)))]
    chosen = np.concatenate(rounds)[:count].tolist() if rounds else []
    shown = random.permutation(chosen).tolist()
    return [_lesson(samples[own], samples[other], chat) for own, other in zip(chosen, shown, strict=True)]


def _lesson(sample: TrainingSample, other: TrainingSample, chat: Chat) -> TrainingSample:
    """Where the other row has no screen of the same size, a screen stays."""
    ids_K, step_K = sample.input_ids[sample.train_mask], steps_in(sample.train_mask)
    answers = [ids_K[step_K == step].tolist() for step in range(int(step_K[-1]) + 1)] if len(step_K) else []
    shown = zip(sample.images, sample.image_grids, strict=True)
    theirs = dict(zip(other.image_grids, other.images, strict=True))
    swapped = replace(sample, images=tuple(theirs.get(grid, image) for image, grid in shown))
    return with_hindsight(swapped, solution(answers, chat), chat)
