"""A tokenizer trained offline, with Qwen's classes, pre-tokenizer and special tokens.

It reads and writes any text. What makes it small-model friendly is which strings are one token each: the numbers of
the coordinate grid, the cell numbers that follow a label, and the fixed text of prompts and tool calls. The prompt
is therefore word for word the one that a full-size model sees, at a twentieth of its tokens.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
GRID = 1000
"""Coordinates are 0..1000, each one token."""
CELLS = 400
"""Cell numbers ` 0`..` 399` with their leading space, each one token."""

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's pre-tokenizer expression (transformers `Qwen2Tokenizer`)."""


def build_tokenizer(corpus: Iterable[str], phrases: Sequence[str], merges: int) -> Qwen2Tokenizer:
    """Learn `merges` byte-pair merges from `corpus` and make every one of `phrases` a single token."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.NFC()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=sorted(alphabet), show_progress=False
    )
    learner.train_from_iterator(corpus, trainer)
    model = json.loads(learner.to_str())["model"]
    merged: Any = [tuple(pair) for pair in model["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=merged,
        unk_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=32768,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
    )
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in dict.fromkeys(phrases)])
    tokenizer.add_tokens([AddedToken(str(n), normalized=False) for n in range(GRID + 1)])
    tokenizer.add_tokens([AddedToken(f" {n}", normalized=False) for n in range(CELLS)])
    return tokenizer


def fixed_phrases(rendered_prompts: Iterable[str], completions: Iterable[str], hole: str) -> list[str]:
    """The fixed pieces of prompts (line by line) and of completions (between numbers and `hole`s)."""
    pieces: list[str] = []
    for prompt in rendered_prompts:
        pieces += re.split(r"<\|[a-z_]+\|>|(?<=\n)", prompt)
    for completion in completions:
        pieces += re.split(rf"{re.escape(hole)}|\d+", completion)
    return [piece for piece in dict.fromkeys(pieces) if len(piece) > 1 and not piece.isalpha()]
