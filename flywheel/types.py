"""The nouns: what a desktop shows, what an agent does, what is recorded, what is trained on.

All of them are frozen. Coordinates are screen pixels, origin top left. Text is `str`, ids are vocabulary
indices, logprobs are natural logarithms, times are seconds.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

Codec = Literal["raw", "png", "webp", "jpeg"]
Split = Literal["train", "heldout"]
Outcome = Literal["completed", "truncated", "failed"]
FailureKind = Literal["infrastructure", "setup", "agent", "evaluator"]
StopReason = Literal["done", "answer", "max_turns", "unparsed", "error"]


class Size(NamedTuple):
    """Pixels."""

    width: int
    height: int


# --- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Click:
    """Press and release `button` `count` times at (x, y), `keys` held down meanwhile."""

    x: int
    y: int
    button: Literal["left", "right", "middle"] = "left"
    count: int = 1
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Move the pointer to (x, y)."""

    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Drag:
    """Press the left button at `start` (where the pointer is, if None), release it at (x, y)."""

    x: int
    y: int
    start: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel at (x, y) (where the pointer is, if None) by `dx` right and `dy` up, in notches."""

    dy: int = 0
    dx: int = 0
    x: int | None = None
    y: int | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """Type `text` into whatever has the keyboard focus."""

    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """Press `keys` together and release them, e.g. ("ctrl", "s")."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for `seconds`."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Done:
    """End the episode; `failure` says that the task cannot be done, which is right for infeasible tasks."""

    status: Literal["success", "failure"] = "success"


@dataclass(frozen=True, slots=True)
class Answer:
    """End the episode with a text answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Run code inside the guest (API-GUI mix); never inside a process of ours."""

    code: str
    language: Literal["python", "bash"] = "python"


Action = Click | Move | Drag | Scroll | Type | Key | Wait | Done | Answer | Code

ACTIONS: dict[str, type] = {
    "click": Click,
    "move": Move,
    "drag": Drag,
    "scroll": Scroll,
    "type": Type,
    "key": Key,
    "wait": Wait,
    "done": Done,
    "answer": Answer,
    "code": Code,
}
"""Tag of each kind of action wherever actions are JSON: in the store, on the wire."""
ACTION_TAGS = {kind: tag for tag, kind in ACTIONS.items()}


# --- what is seen ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Screenshot:
    """An image as it came from the environment. `raw` is width * height * 3 bytes of RGB, row by row."""

    data: bytes
    width: int
    height: int
    codec: Codec = "raw"

    @classmethod
    def from_array(cls, pixels_HWC: np.ndarray) -> "Screenshot":
        """uint8 RGB, shape (height, width, 3)."""
        height, width, _ = pixels_HWC.shape
        return cls(pixels_HWC.tobytes(), width, height)

    @property
    def size(self) -> Size:
        return Size(self.width, self.height)

    @property
    def sha256(self) -> str:
        """Hex digest of the bytes as they are encoded."""
        return hashlib.sha256(self.data).hexdigest()

    def image(self) -> Image.Image:
        """RGB; raises `OSError` when the bytes are truncated."""
        if self.codec == "raw":
            return Image.frombytes("RGB", (self.width, self.height), self.data)
        return Image.open(io.BytesIO(self.data)).convert("RGB")

    def array(self) -> np.ndarray:
        """uint8, shape (height, width, 3)."""
        if self.codec == "raw":
            return np.frombuffer(self.data, np.uint8).reshape(self.height, self.width, 3)
        return np.asarray(self.image())

    def encode(self, codec: Literal["png", "webp"] = "png") -> "Screenshot":
        """The same pixels, losslessly compressed; returns itself when it is compressed already."""
        if self.codec != "raw":
            return self
        out = io.BytesIO()
        if codec == "png":
            self.image().save(out, "PNG", compress_level=1)
        else:
            self.image().save(out, "WEBP", lossless=True, quality=0, method=0)
        return Screenshot(out.getvalue(), self.width, self.height, codec)


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the desktop. `last_result` is what became of the action before it."""

    screenshot: Screenshot | None
    accessibility_tree: str | None = None
    terminal: str | None = None
    last_result: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action led to. `error` is a sentence when the action could not be executed."""

    observation: Observation
    executed: bool = True
    error: str | None = None
    done: bool = False


# --- tasks and policies ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `config` and `evaluator` are OSWorld's own JSON; `raw` is the whole file as read."""

    id: str
    instruction: str
    domain: str
    config: tuple[Mapping[str, Any], ...] = ()
    evaluator: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    level: int = 1
    split: Split = "train"
    infeasible: bool = False
    platform: str = "simulated"
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """A checkpoint: `version` is its name, `uri` a folder or hub id, `fingerprint` a hash of its weights."""

    version: str
    uri: str
    parent: str | None = None
    fingerprint: str = ""


# --- records ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """One look, one completion, one action.

    `prompt_ids` is the delta against everything before it, with one image placeholder for each image;
    `completion_ids` and `logprobs` have equal length and are recorded as sampled. `image_grid` is
    (t, h, w) in patches. `action` is None when the text could not be read, `error` then says why.
    """

    observation: Observation
    text: str
    action: Action | None
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    image_grid: tuple[int, int, int] | None = None
    finish_reason: str = "stop"
    fallback: bool = False
    executed: bool = True
    error: str | None = None
    model_seconds: float = 0.0
    env_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions were drawn; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one episode. `task_reward` is None when the task was not judged."""

    id: str
    task: Task
    policy: PolicyRef
    turns: tuple[Turn, ...]
    outcome: Outcome
    stop_reason: StopReason
    task_reward: float | None
    group_id: str = ""
    failure: FailureKind | None = None
    error: str | None = None
    shaped_reward: float | None = None
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    advantage: float | None = None
    experiment: str = "default"
    iteration: int = 0
    action_space: str = "computer_use/1"
    sampling: Sampling = Sampling()
    worker: str = ""
    seed: int = 0
    started_at: float = 0.0
    wall_seconds: float = 0.0

    @property
    def success(self) -> bool:
        """By the binary task reward, never the shaped one."""
        return self.task_reward is not None and self.task_reward >= 0.5


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """What is trained on of a whole trajectory: one document, or several where a window cut its prompts.

    `begins` says where each document after the first begins, as (token, image). However many there are, they are one
    row to every statistic: one trajectory, one reward, one count of tokens.

    `input_ids` has image placeholders already expanded (one for each merged token); `train_mask`, `logprobs` and
    `weights` have the same length and are zero away from completions. `images` come in the order
    of their placeholders.
    """

    trajectory_id: str
    group_id: str
    input_ids: np.ndarray
    train_mask: np.ndarray
    logprobs: np.ndarray
    weights: np.ndarray
    images: tuple[Screenshot, ...]
    image_grids: tuple[tuple[int, int, int], ...]
    advantage: float = 0.0
    begins: tuple[tuple[int, int], ...] = ()

    @property
    def documents(self) -> "tuple[TrainingSample, ...]":
        """Each document as a sample of its own; they must not see each other."""
        if not self.begins:
            return (self,)
        edges = pairwise(((0, 0), *self.begins, (len(self.input_ids), len(self.images))))
        return tuple(
            replace(
                self,
                input_ids=self.input_ids[token:stop],
                train_mask=self.train_mask[token:stop],
                logprobs=self.logprobs[token:stop],
                weights=self.weights[token:stop],
                images=self.images[image:last],
                image_grids=self.image_grids[image:last],
                begins=(),
            )
            for (token, image), (stop, last) in edges
        )


@dataclass(frozen=True, slots=True)
class EvalReport:
    """How a policy did on a split. Rates are over judged episodes; `env_errors` are reported beside them."""

    policy: PolicyRef
    split: Split
    seed: int
    episodes: int
    solved: int
    env_errors: int
    success_rate: float
    ci_low: float
    ci_high: float
    by_family: Mapping[str, Mapping[str, float]]
    per_task: Mapping[str, tuple[float, ...]]
    wall_seconds: float = 0.0
    steps_per_second: float = 0.0
    tokens_per_second: float = 0.0
