"""A policy in memory: the model of a checkpoint and the words that belong to it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flywheel.chat import Chat, make_words
from flywheel.config import Config
from flywheel.errors import CheckpointError
from flywheel.modeling.processor import load_processor
from flywheel.modeling.qwen import load_model
from flywheel.modeling.resize import model_size
from flywheel.types import PolicyRef


def make_chat(config: Config, processor: Any) -> Chat:
    """The same words as tokens of a processor."""
    images = processor.image_processor
    factor = images.patch_size * images.merge_size
    return Chat(processor, make_words(config), partial(model_size, factor=factor, max_pixels=config.model.max_pixels))


def load_policy(config: Config, policy: PolicyRef) -> tuple[Any, Chat]:
    """Model in evaluation mode, and its chat. Raises `PolicyError`, or `CheckpointError` for damaged weights."""
    folder = Path(policy.uri)
    if folder.is_dir() and policy.fingerprint:
        _check_whole(folder)
    model = load_model(policy.uri, dtype=config.model.dtype, device=device(config))
    return model.eval(), make_chat(config, load_processor(policy.uri))


def device(config: Config) -> str:
    """`auto` is the GPU where there is one."""
    if config.model.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.model.device


def _check_whole(folder: Path) -> None:
    """A truncated weight file fails here with a sentence, not inside a loader with a stack of frames."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            head = stream.read(8)
            try:
                header = json.loads(stream.read(int.from_bytes(head, "little")))
                length = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
            except (ValueError, KeyError, OverflowError, MemoryError) as error:
                raise CheckpointError(f"{file} is corrupt; make the checkpoint again.") from error
        if file.stat().st_size != 8 + int.from_bytes(head, "little") + length:
            raise CheckpointError(f"{file} is truncated; make the checkpoint again.")
