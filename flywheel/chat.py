"""Between turns and tokens: the only caller of the chat template.

A conversation is a growing list of ids. What the policy said is never tokenised again: each new observation adds a
*delta* (the end of the assistant's message, the user's turn, the header of the next answer), and completions are kept
as they were sampled. Two streams of the same ids exist: the compact one, with one placeholder an image, is recorded
and sent to engines; `expand` makes the one for the model, with a placeholder for each merged image token.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from PIL import Image

from flywheel.actions.base import ActionSpace
from flywheel.actions.registry import action_space
from flywheel.config import Config
from flywheel.errors import ConfigError, DataError, PolicyError
from flywheel.types import Observation, Screenshot, Size, Task, TrainingSample, Trajectory
from flywheel.window import EVERYTHING, Layout, Window

IMAGE = "<|image_pad|>"
PICTURE = "<image>"
"""Where a picture stands in shared messages."""
Grid = tuple[int, int, int]

_HOLE = "\x00"
_MARKUP = re.compile(r"<(?=\|\w+\|>|image>)")
"""The bracket that opens `<|im_end|>`, `<image>` and their like."""


def without_markup(text: str) -> str:
    """What a screen or a terminal shows may spell the marks of the chat template; their first bracket becomes `‹`, so
    that they stay words and neither end the turn nor claim an image."""
    return _MARKUP.sub("‹", text)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one observation adds to a conversation; `image` is what the model will look at.

    Where the conversation begins anew because its window was cut, `earlier` are the pictures it shows again; those of a
    question without an observation are all there.
    """

    ids: tuple[int, ...]
    image: Screenshot | None
    grid: Grid | None
    earlier: tuple[tuple[Screenshot, Grid], ...] = ()

    @property
    def pictures(self) -> tuple[tuple[Screenshot, Grid], ...]:
        """All pictures behind the placeholders of `ids`, in order."""
        own = ((self.image, self.grid),) if self.image and self.grid else ()
        return (*self.earlier, *own)


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion as it was sampled; `cut` where it was stopped before its end marker."""

    ids: tuple[int, ...]
    cut: bool


class Words:
    """What is said in a conversation, before any tokenizer: needs no model.

    Args:
        space: writes the system prompt and the tools.
        sections: which of `domain, task, accessibility_tree, terminal, last_result` an observation turn carries.
        accessibility_chars: where the accessibility tree is cut.
        window: how much of a conversation a prompt holds.
    """

    def __init__(
        self,
        space: ActionSpace,
        sections: Sequence[str],
        accessibility_chars: int = 4096,
        window: Window = EVERYTHING,
    ) -> None:
        unknown = set(sections) - set(_SECTIONS)
        if unknown:
            raise ConfigError(f"prompt.sections names {sorted(unknown)[0]!r}; choose from {', '.join(_SECTIONS)}.")
        self.space = space
        self._sections = tuple(sections)
        self._accessibility_chars = accessibility_chars
        self.window = window

    def observation(self, task: Task, seen: Observation) -> str:
        """The text of a user turn; the picture stands before it."""
        parts = []
        for name in self._sections:
            title, read = _SECTIONS[name]
            value = read(task, seen)
            if value is not None:
                value = value[: self._accessibility_chars] if name == "accessibility_tree" else value
                parts.append(f"{title}\n{value}")
        return without_markup("\n".join(parts))

    def messages(self, trajectory: Trajectory) -> list[dict[str, str]]:
        """The conversation as role and content, `<image>` where a screenshot stands: what people share."""
        messages = [{"role": "system", "content": self.space.system_prompt()}]
        for turn in trajectory.turns:
            picture = PICTURE if turn.observation.screenshot else ""
            messages.append({"role": "user", "content": picture + self.observation(trajectory.task, turn.observation)})
            messages.append({"role": "assistant", "content": turn.text})
        return messages


def make_words(config: Config) -> Words:
    """What `config.prompt` has said; needs no model."""
    prompt = config.prompt
    window = Window(prompt.window, prompt.slack)
    return Words(action_space(prompt.action_space), prompt.sections, prompt.accessibility_chars, window)


class Chat:
    """Words made of one processor's tokens.

    Args:
        processor: tokenizer, image processor and chat template.
        words: what is said.
        model_size: screen size -> size at which the model sees it, sides a multiple of patch * merge.
    """

    def __init__(self, processor: Any, words: Words, model_size: Callable[[Size], Size]) -> None:
        self.processor = processor
        self.words = words
        self.space = words.space
        self.model_size = model_size
        self.tokenise = lru_cache(maxsize=65536)(self._tokenise)
        """Text -> ids, no special tokens added; remembered, because instructions and frames come again and again."""

    # --- ids ---------------------------------------------------------------------------------------

    @cached_property
    def image_id(self) -> int:
        return int(self.processor.tokenizer.convert_tokens_to_ids(IMAGE))

    @cached_property
    def picture_ids(self) -> tuple[int, ...]:
        """A lone picture, as grounding lessons begin."""
        return self.tokenise(f"<|vision_start|>{IMAGE}<|vision_end|>")

    @cached_property
    def end_id(self) -> int:
        """`<|im_end|>`: the last id of every finished completion."""
        return int(self.processor.tokenizer.convert_tokens_to_ids("<|im_end|>"))

    @cached_property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that must never be sampled: they would claim an image that is not there."""
        names = (IMAGE, "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_start|>", "<|endoftext|>")
        return tuple(int(self.processor.tokenizer.convert_tokens_to_ids(name)) for name in names)

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """The four ids of the label rule. Raises `PolicyError` for a tokenizer that needs more of them."""
        words = {"im_start": "<|im_start|>", "assistant": "assistant", "newline": "\n", "im_end": "<|im_end|>"}
        ids = {name: self._tokenise(word) for name, word in words.items()}
        for name, found in ids.items():
            if len(found) != 1:
                raise PolicyError(
                    f"The tokenizer splits {words[name]!r}, which the label rule needs as one token; give a tiny model "
                    "more merges (model.tiny.merges)."
                )
        return {name: found[0] for name, found in ids.items()}

    def first(self, task: Task, observation: Observation) -> Prompt:
        """System prompt, tools and the first observation."""
        return self._prompt(self._frame[0], task, observation)

    def next(self, task: Task, observation: Observation, *, cut: bool = False) -> Prompt:
        """What follows an answer: the end of its line, a new observation, the next header.

        `cut` says that the answer was stopped before its end marker, which then comes first.
        """
        prompt = self._prompt(self._frame[1], task, observation)
        return replace(prompt, ids=(self.end_id, *prompt.ids)) if cut else prompt

    def again(self, task: Task, seen: Sequence[Observation], said: Sequence[Answer]) -> Prompt:
        """The conversation begun anew with these observations and the answers between them, as they were sampled."""
        prompts = [self.first(task, seen[0])]
        for observation, answer in zip(seen[1:], said, strict=True):
            prompts.append(self.next(task, observation, cut=answer.cut))
        ids = [*prompts[0].ids]
        for prompt, answer in zip(prompts[1:], said, strict=True):
            ids += [*answer.ids, *prompt.ids]
        earlier = tuple(picture for prompt in prompts[:-1] for picture in prompt.pictures)
        return replace(prompts[-1], ids=tuple(ids), earlier=earlier)

    def question(self, system: str, text: str, shots: Sequence[Screenshot]) -> Prompt:
        """A conversation of one question about pictures, outside of any action space: no tools."""
        asked = [*({"type": "image"} for _ in shots), {"type": "text", "text": without_markup(text)}]
        messages = [
            {"role": "system", "content": [{"type": "text", "text": system}]},
            {"role": "user", "content": asked},
        ]
        ids = self._tokenise(self.render(messages, generation=True, tools=False))
        return Prompt(ids, None, None, tuple((shot, self.grid(shot.size)) for shot in shots))

    def decode(self, completion_ids: Sequence[int]) -> str:
        """Text of a completion, without its end marker."""
        ids = completion_ids[:-1] if completion_ids and completion_ids[-1] == self.end_id else completion_ids
        return str(self.processor.tokenizer.decode(list(ids), skip_special_tokens=False))

    def expand(self, ids: Sequence[int], grids: Sequence[Grid]) -> np.ndarray:
        """Compact ids -> model ids, int64: each image placeholder repeated once for each merged token."""
        merge = self.processor.image_processor.merge_size**2
        compact = np.asarray(ids, np.int64)
        repeats = np.ones(len(compact), np.int64)
        places = np.flatnonzero(compact == self.image_id)
        if len(places) != len(grids):
            raise DataError(f"A conversation has {len(places)} image placeholders but {len(grids)} images.")
        repeats[places] = [t * h * w // merge for t, h, w in grids]
        return np.repeat(compact, repeats)

    # --- pictures --------------------------------------------------------------------------------------

    def shown(self, image: Screenshot) -> Screenshot:
        """The picture at the size at which the model sees it; itself where that is its own."""
        size = self.model_size(image.size)
        if size == image.size:
            return image
        return Screenshot.from_array(np.asarray(image.image().resize(size, Image.Resampling.BICUBIC)))

    def grid(self, size: Size) -> Grid:
        """(t, h, w) in patches of a screen of this size."""
        shown = self.model_size(size)
        patch = self.processor.image_processor.patch_size
        return 1, shown.height // patch, shown.width // patch

    # --- whole trajectories ----------------------------------------------------------------------------

    def sample(self, trajectory: Trajectory) -> TrainingSample:
        """A recorded trajectory to train on; ids and logprobs exactly as recorded, every completion trained once."""
        turns = trajectory.turns
        looks = [turn.observation.screenshot for turn in turns if turn.image_grid]
        grids = [turn.image_grid for turn in turns if turn.image_grid]
        laid = self.lay(
            [turn.prompt_ids for turn in turns],
            [turn.completion_ids for turn in turns],
            grids,
            [int(turn.image_grid is not None) for turn in turns],
        )
        logprobs = np.zeros(len(laid.ids_N), np.float32)
        if turns:
            recorded = [_padded(turn.logprobs, len(turn.completion_ids)) for turn in turns]
            logprobs[laid.answered_N] = np.concatenate(recorded)
        return TrainingSample(
            trajectory_id=trajectory.id,
            group_id=trajectory.group_id,
            input_ids=laid.ids_N,
            train_mask=laid.answered_N,
            logprobs=logprobs,
            weights=laid.answered_N.astype(np.float32),
            images=tuple(look for n in laid.pictures if (look := looks[n])),
            image_grids=tuple(grids[n] for n in laid.pictures),
            advantage=trajectory.advantage or 0.0,
            begins=laid.begins,
        )

    def lay(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        grids: Sequence[Grid],
        shown: Sequence[int],
    ) -> Layout:
        """Recorded ids, turn by turn, as documents.

        A document goes on as long as each prompt goes on from what was said before. A prompt that begins with the
        system turn again was cut to its window: it begins a document of its own, and answers it repeats are context.

        Args:
            prompts: compact ids that each turn added.
            completions: ids sampled in each turn.
            grids: of all pictures, in order.
            shown: how many of them are new in each turn.
        Raises: `DataError` when there are more or fewer pictures than placeholders.
        """
        if sum(shown) != len(grids):
            raise DataError(f"A conversation has {sum(shown)} image placeholders but {len(grids)} images.")
        ids, answered = [np.empty(0, np.int64)], [np.empty(0, bool)]
        pictures: list[int] = []
        begins: list[tuple[int, int]] = []
        system = _until(prompts[0], self.end_id) if prompts else ()
        seen = length = 0
        for number, (prompt, completion, new) in enumerate(zip(prompts, completions, shown, strict=True)):
            seen += new
            held = new
            if number and tuple(prompt[: len(system)]) == system:
                begins.append((length, len(pictures)))
                held = sum(token == self.image_id for token in prompt)
            pictures += range(seen - held, seen)
            expanded = self.expand(prompt, grids[seen - held : seen])
            ids += [expanded, np.asarray(completion, np.int64)]
            answered += [np.zeros(len(expanded), bool), np.ones(len(completion), bool)]
            length += len(expanded) + len(completion)
        return Layout(np.concatenate(ids), np.concatenate(answered), tuple(pictures), tuple(begins))

    def conversation(self, messages: Sequence[dict[str, str]], sizes: Sequence[Size]) -> tuple[np.ndarray, list[Grid]]:
        """Shared messages -> model ids of the whole conversation, and a grid for each picture of the given size."""
        parts = [{"role": m["role"], "content": _content(m)} for m in messages]
        grids = [self.grid(size) for size in sizes]
        return self.expand(self._tokenise(self.render(parts)), grids), grids

    def render(self, messages: list[dict[str, Any]], *, generation: bool = False, tools: bool = True) -> str:
        """A conversation of text and image parts through the chat template, with the action space's tools or none."""
        offered = (self.space.tools() or None) if tools else None
        return str(
            self.processor.apply_chat_template(
                messages, tools=offered, tokenize=False, add_generation_prompt=generation
            )
        )

    # --- inside ------------------------------------------------------------------------------------------

    @cached_property
    def _frame(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Text before and after the words of a user turn: for the first turn, and for every later one."""
        user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": _HOLE}]}
        system = {"role": "system", "content": [{"type": "text", "text": self.space.system_prompt()}]}
        opening = self.render([system, user], generation=True)
        answered = {"role": "assistant", "content": [{"type": "text", "text": _HOLE}]}
        longer = self.render([system, user, answered, user], generation=True)
        if not longer.startswith(opening):
            raise PolicyError(
                "The chat template rewrites earlier turns, as those of thinking models do, so a conversation cannot "
                "grow turn by turn; take an Instruct model."
            )
        # After the second hole comes the answer's own end marker, which the completion already holds.
        following = longer[len(opening) :].split(_HOLE, 1)[1].removeprefix("<|im_end|>")
        first, last = opening.split(_HOLE), following.split(_HOLE)
        return (first[0], first[1]), (last[0], last[1])

    def _prompt(self, frame: tuple[str, str], task: Task, observation: Observation) -> Prompt:
        before, after = frame
        image = observation.screenshot
        if image is None:
            before = before.replace(f"<|vision_start|>{IMAGE}<|vision_end|>", "")
        ids = (*self.tokenise(before), *self.tokenise(self.words.observation(task, observation)), *self.tokenise(after))
        return Prompt(ids, image, self.grid(image.size) if image else None)

    def _tokenise(self, text: str) -> tuple[int, ...]:
        return tuple(self.processor.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


_SECTIONS: dict[str, tuple[str, Callable[[Task, Observation], str | None]]] = {
    "domain": ("[Domain]", lambda task, seen: task.domain),
    "task": ("[Task]", lambda task, seen: task.instruction),
    "accessibility_tree": ("[Accessibility Tree]", lambda task, seen: seen.accessibility_tree),
    "terminal": ("[Terminal Output]", lambda task, seen: seen.terminal),
    "last_result": ("[Last Action Result]", lambda task, seen: seen.last_result),
}


def _content(message: dict[str, str]) -> list[dict[str, str]]:
    """`<image>words` -> an image part and a text part; an answer holds no images, whatever it says."""
    answered = message["role"] == "assistant"
    pieces = [message["content"]] if answered else message["content"].split(PICTURE)
    content = [{"type": "text", "text": pieces[0]}] if pieces[0] else []
    for piece in pieces[1:]:
        content += [{"type": "image"}, {"type": "text", "text": piece}]
    return content


def _until(ids: Sequence[int], last: int) -> tuple[int, ...]:
    """Up to and with the first `last`; all of them where there is none."""
    whole = tuple(ids)
    return whole[: whole.index(last) + 1] if last in whole else whole


def _padded(logprobs: Sequence[float], length: int) -> np.ndarray:
    """Recorded logprobs, or zeros where nobody sampled."""
    return np.asarray(logprobs, np.float32) if logprobs else np.zeros(length, np.float32)
