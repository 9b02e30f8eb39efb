"""What stands in for the hub's pre-training: a tiny model learns to read a screen before it learns to act on one.

Two stages on random scenes of the simulated desktop:

1. *Vision*: each merged image token is pulled, by cross-entropy against the tied text embeddings, towards the caption
   in its cell, the number of the cell and the coordinates of its centre; linear probes for kind and state keep those
   apart.
2. *Grounding*: for a widget named by kind and caption, say its cell and its coordinates, in the very words of an
   action. Beside it *dictation*: repeat a line of words one after the other, each in the words of an action. A hub
   model can copy from its prompt; without these lines the tiny one must learn that, word by word, from demonstrations.

Shapes: B scenes, C cells of a screen (= merged image tokens), I = B * C, D hidden size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flywheel.actions.computer_use import ComputerUse
from flywheel.actions.tool_arguments import to_grid
from flywheel.chat import Chat
from flywheel.envs.simulated.desktop import Widget
from flywheel.envs.simulated.scenes import random_scene
from flywheel.envs.simulated.vocabulary import ALL_WORDS, CAPTIONS, KINDS, STATES
from flywheel.modeling.features import look
from flywheel.sections import TinyModelConfig
from flywheel.seeds import derive_seed
from flywheel.trainers.model import PolicyModel, freeze_vision
from flywheel.trainers.optimisation import Optimisation, cosine
from flywheel.trainers.packing import pack
from flywheel.trainers.progress import Report
from flywheel.types import Click, Screenshot, Size, TrainingSample, Type

Grid = tuple[int, int, int]

CELL = 32
"""Pixels of a merged image token's side: patch 16 times merge 2."""
LOSS_WEIGHTS = {"caption": 1.0, "cell": 0.5, "x": 0.25, "y": 0.25, "kind": 0.5, "state": 0.5}
LR = 3e-3
VISION_BATCH = 32
GROUNDING_BATCH = 16
DICTATIONS = 8
"""Texts beside the scenes of a batch; a fifth of its tokens."""
FEW_WIDGETS = 0.6
"""Share of grounding scenes with one to four widgets; the others are full."""
CELLS_FIRST = 0.4
"""Share of grounding steps that teach only the cell. With coordinates from the start the cell is never learned: they
follow from it by a table, and their easy loss takes all the gradient."""


class Teacher:
    """Names of things as token ids, for one screen size."""

    def __init__(self, chat: Chat, screen: Size) -> None:
        self.chat, self.screen = chat, screen
        self.columns = screen.width // CELL
        self.cells = self.columns * (screen.height // CELL)
        self.space = ComputerUse()
        xy = [self._coordinates(cell) for cell in range(self.cells)]
        xs, ys = sorted({x for x, _ in xy}), sorted({y for _, y in xy})
        self.classes = {
            "caption": self._ids([f" {caption}" for caption in CAPTIONS]),
            "cell": self._ids([f" {cell}" for cell in range(self.cells)]),
            "x": self._ids([str(x) for x in xs]),
            "y": self._ids([str(y) for y in ys]),
        }
        self._places = {
            "cell": np.arange(self.cells),
            "x": np.array([xs.index(x) for x, _ in xy]),
            "y": np.array([ys.index(y) for _, y in xy]),
        }

    def targets(self, scenes: Sequence[Sequence[Widget]]) -> dict[str, Tensor]:
        """Name -> class numbers (I,); -100 where a cell is empty and there is nothing to say."""
        seen = {name: np.full((len(scenes), self.cells), -100) for name in ("caption", "kind", "state")}
        for b, widgets in enumerate(scenes):
            for widget in widgets:
                seen["caption"][b, widget.cell] = CAPTIONS.index(widget.caption)
                seen["kind"][b, widget.cell] = KINDS.index(widget.kind)
                seen["state"][b, widget.cell] = STATES.index(widget.state)
        places = {name: np.tile(numbers, (len(scenes), 1)) for name, numbers in self._places.items()}
        return {name: torch.from_numpy(numbers.reshape(-1)) for name, numbers in {**seen, **places}.items()}

    def lesson(self, scene: np.ndarray, widgets: Sequence[Widget], full: Sequence[bool]) -> TrainingSample:
        """A screen and a line for each widget; trained are the numbers: cells, and coordinates where `full`."""
        image = Screenshot.from_array(scene)
        grid = self.chat.grid(image.size)
        ids = list(self.chat.expand(self.chat.picture_ids, [grid]))
        train = [False] * len(ids)
        for widget, whole in zip(widgets, full, strict=True):
            line = self._line(widget)
            if not whole:
                line = line[: line.index("</thinking>")]
            tokens = self.chat.tokenise(line + "\n")
            ids += tokens
            train += [token in self._numbers for token in tokens]
        return _sample(ids, train, (image,), (grid,))

    def dictation(self, words: Sequence[str]) -> TrainingSample:
        """A line of words, then an action for each that types it; trained are the words as they are repeated."""
        ids = list(self.chat.tokenise("".join(f" {word}" for word in words) + "\n"))
        train = [False] * len(ids)
        for word in words:
            tokens = self.chat.tokenise(self.space.format(Type(word), self.screen, thinking=word, brief=word) + "\n")
            spoken = self._ids([word, f" {word}"])
            ids += tokens
            train += [token in spoken for token in tokens]
        return _sample(ids, train)

    @property
    def _numbers(self) -> frozenset[int]:
        return frozenset(self.classes["cell"] + self.classes["x"] + self.classes["y"])

    def _line(self, widget: Widget) -> str:
        thinking = f"{widget.kind} {widget.caption} {widget.cell}"
        brief = f"click {widget.caption}"
        return self.space.format(Click(*widget.center), self.screen, thinking=thinking, brief=brief)

    def _coordinates(self, cell: int) -> tuple[int, int]:
        """Grid coordinates that an action at the centre of a cell is written with."""
        x, y = (cell % self.columns) * CELL + CELL // 2, (cell // self.columns) * CELL + CELL // 2
        return to_grid(x, self.screen.width), to_grid(y, self.screen.height)

    def _ids(self, words: Sequence[str]) -> list[int]:
        ids = [self.chat.tokenise(word) for word in words]
        wrong = [word for word, tokens in zip(words, ids, strict=True) if len(tokens) != 1]
        if wrong:
            raise ValueError(f"Grounding needs one token a word, but {wrong[0]!r} takes several.")
        return [tokens[0] for tokens in ids]


def train_vision(model: Any, chat: Chat, screen: Size, sizes: TinyModelConfig, seed: int, report: Report) -> float:
    """Stage 1, in place; the share of captions named correctly over the last tenth of the steps."""
    teacher, hidden = Teacher(chat, screen), model.config.text_config.hidden_size
    torch.manual_seed(seed)
    probes = nn.ModuleDict({"kind": nn.Linear(hidden, len(KINDS)), "state": nn.Linear(hidden, len(STATES))})
    parameters = [*model.model.visual.parameters(), model.get_input_embeddings().weight, *probes.parameters()]
    optimisation = _optimisation(parameters, sizes.vision_steps)
    random = np.random.default_rng(derive_seed(seed, "vision"))
    right: list[float] = []
    for step in range(sizes.vision_steps):
        scenes = [random_scene(random, screen, (1, teacher.cells)) for _ in range(VISION_BATCH)]
        loss, accuracy = _vision_loss(model, teacher, probes, scenes)
        optimisation.backward(loss)
        optimisation.step()
        right.append(accuracy)
        report.metrics(step + 1, {"vision_loss": float(loss.detach()), "caption_accuracy": accuracy})
        report.advance(step + 1, sizes.vision_steps, "vision steps")
    return float(np.mean(right[-max(1, len(right) // 10) :]))


def _vision_loss(
    model: Any, teacher: Teacher, probes: nn.ModuleDict, scenes: Sequence[tuple[np.ndarray, list[Widget]]]
) -> tuple[Tensor, float]:
    features = look(model, teacher.chat, [Screenshot.from_array(image) for image, _ in scenes])
    normal_ID = F.rms_norm(features.embeds_ID, features.embeds_ID.shape[-1:])
    table = model.get_input_embeddings().weight
    targets = teacher.targets([widgets for _, widgets in scenes])
    loss, accuracy = normal_ID.new_zeros(()), 0.0
    for name, target_I in targets.items():
        logits = probes[name](normal_ID) if name in probes else normal_ID @ table[teacher.classes[name]].T
        loss = loss + LOSS_WEIGHTS[name] * F.cross_entropy(logits, target_I)
        if name == "caption":
            known = target_I >= 0
            accuracy = float((logits.argmax(-1)[known] == target_I[known]).float().mean())
    return loss, accuracy


def train_grounding(
    model: Any,
    chat: Chat,
    screen: Size,
    sizes: TinyModelConfig,
    seed: int,
    report: Report,
    words: Sequence[str] = ALL_WORDS,
) -> float:
    """Stage 2, in place; the share of tokens said correctly over the last tenth of the steps.

    Dictated are those of `words` that the tokenizer holds as one token each.

    The vision tower learns on: what the language model needs of it is not settled yet.
    """
    teacher, policy = Teacher(chat, screen), PolicyModel(model, chat, frozen=False)
    dictated = [word for word in words if len(chat.tokenise(word)) == len(chat.tokenise(f" {word}")) == 1]
    optimisation = _optimisation(list(model.parameters()), sizes.grounding_steps)
    random = np.random.default_rng(derive_seed(seed, "grounding"))
    right: list[float] = []
    for step in range(sizes.grounding_steps):
        full = 0.5 if step >= CELLS_FIRST * sizes.grounding_steps else 0.0
        lessons = [_lesson(teacher, random, full) for _ in range(GROUNDING_BATCH)]
        lessons += [_dictation(teacher, dictated, random) for _ in range(DICTATIONS)]
        row = pack(lessons, image_id=chat.image_id)
        logp_KV = policy.distribution(row)
        targets_K = torch.from_numpy(row.targets_K)
        loss = F.nll_loss(logp_KV, targets_K)
        optimisation.backward(loss)
        optimisation.step()
        right.append(float((logp_KV.argmax(-1) == targets_K).float().mean()))
        report.metrics(step + 1, {"grounding_loss": float(loss.detach()), "grounding_accuracy": right[-1]})
        report.advance(step + 1, sizes.grounding_steps, "grounding steps")
    freeze_vision(model)
    return float(np.mean(right[-max(1, len(right) // 10) :]))


def _lesson(teacher: Teacher, random: np.random.Generator, full: float) -> TrainingSample:
    few = random.random() < FEW_WIDGETS
    image, widgets = random_scene(random, teacher.screen, (1, 4) if few else (5, teacher.cells))
    random.shuffle(widgets)
    return teacher.lesson(image, widgets, (random.random(len(widgets)) < full).tolist())


def _dictation(teacher: Teacher, words: Sequence[str], random: np.random.Generator) -> TrainingSample:
    return teacher.dictation(random.choice(words, random.integers(2, 5), replace=False).tolist())


def _sample(
    ids: list[int], train: list[bool], images: tuple[Screenshot, ...] = (), grids: tuple[Grid, ...] = ()
) -> TrainingSample:
    mask = np.array(train)
    zeros = np.zeros(len(ids), np.float32)
    return TrainingSample("", "", np.array(ids, np.int64), mask, zeros, mask.astype(np.float32), images, grids)


def _optimisation(parameters: list[nn.Parameter], steps: int) -> Optimisation:
    return Optimisation(
        parameters, lr=LR, betas=(0.9, 0.95), weight_decay=0.01, schedule=cosine(steps, 0.1, 0.05), grad_clip=1.0
    )
