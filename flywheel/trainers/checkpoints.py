"""Checkpoints: what a policy is, and what a trainer needs to go on as if nothing had happened.

A policy folder is what `save_pretrained` writes, the processor beside it, and `policy.json` last; a folder without it is
unfinished and invisible. A trainer state holds model, optimiser, schedule, position in the data and the random
generators, and appears by one rename, so kill -9 leaves the state before it or the state after it.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flywheel.errors import CheckpointError
from flywheel.types import PolicyRef
from flywheel.workspace import write_policy

KEPT_STATES = 2


def save_policy(model: Any, processor: Any, policy: PolicyRef, folder: Path) -> PolicyRef:
    """Write a finished policy folder; replaces what was there only when the new one is whole."""
    staged = folder.with_name(f"{folder.name}.tmp{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    model.save_pretrained(staged)
    processor.save_pretrained(staged)
    write_policy(staged, policy)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged.replace(folder)
    return policy


class TrainerStates:
    """Numbered trainer states under one folder.

    Args:
        folder: where `step-NNNNNN` folders lie; the newest `KEPT_STATES` are kept.
        parts: name -> object with `state_dict` and `load_state_dict`, beside the model.
    """

    def __init__(self, folder: Path, model: torch.nn.Module, parts: dict[str, Any]) -> None:
        self._folder, self._model, self._parts = folder, model, parts

    def save(self, step: int) -> None:
        """Write the state after `step` optimiser steps."""
        final = self._folder / f"step-{step:06d}"
        staged = self._folder / f"tmp-{step:06d}"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        tensors = {name: value.contiguous() for name, value in self._model.state_dict().items()}
        save_file(_untied(tensors), staged / "model.safetensors")
        others = {name: part.state_dict() for name, part in self._parts.items()}
        torch.save({"parts": others, "rng": torch.get_rng_state(), "step": step}, staged / "trainer.pt")
        for file in staged.iterdir():
            _fsync(file)
        shutil.rmtree(final, ignore_errors=True)
        staged.replace(final)
        _fsync(self._folder)
        for old in self._saved()[:-KEPT_STATES]:
            shutil.rmtree(old)

    def resume(self) -> int:
        """Load the newest state; the number of steps it has seen, 0 when there is none.

        Raises `CheckpointError` when the newest state is corrupt.
        """
        saved = self._saved()
        if not saved:
            return 0
        try:
            self._model.load_state_dict(load_file(saved[-1] / "model.safetensors"), strict=False)
            state = torch.load(saved[-1] / "trainer.pt", weights_only=True)
        except (SafetensorError, RuntimeError, OSError, EOFError) as error:
            raise CheckpointError(
                f"The trainer state {saved[-1]} is corrupt ({str(error).splitlines()[0]}); delete that folder to go on "
                "from the one before it."
            ) from error
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        torch.set_rng_state(state["rng"])
        return int(state["step"])

    def clear(self) -> None:
        """Forget all states; called when the stage is finished."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _saved(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))


def _untied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Drop names that share memory with an earlier one: tied embeddings are written once."""
    seen: set[int] = set()
    kept = {}
    for name, tensor in tensors.items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept[name] = tensor
    return kept


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
