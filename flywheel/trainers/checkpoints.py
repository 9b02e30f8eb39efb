"""Checkpoints: what a policy is, and what a trainer needs to go on as if nothing had happened.

A policy folder is what `save_pretrained` writes, the processor beside it, and `policy.json` last; a folder without it
is unfinished and invisible. A trainer state holds model, optimiser, schedule, position in the data and the random
generators (under several processes each writes its share, and another number of them may go on), and appears by one
rename, so kill -9 leaves the state before it or the state after it. A save that fails
leaves what was saved before.
"""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flywheel.errors import CheckpointError
from flywheel.trainers.sharding import SHARDS, is_sharded, load_shards, save_shards, spread, spread_moments
from flywheel.types import PolicyRef
from flywheel.workspace import write_policy

KEPT_STATES = 2


def save_policy(
    model: Any, processor: Any, policy: PolicyRef, folder: Path, weights: dict[str, torch.Tensor] | None = None
) -> PolicyRef:
    """Write a finished policy folder; replaces what was there only when the new one is whole.

    Args:
        weights: in place of the model's own, where those are spread over processes.
    Raises `CheckpointError` when it cannot be written; what was there then stays.
    """
    staged, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    with _writing(staged, folder):
        _fresh(staged)
        model.save_pretrained(staged, state_dict=weights)
        processor.save_pretrained(staged)
        write_policy(staged, policy)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staged.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return policy


def states_folder(out: Path, *decides: Any) -> Path:
    """Where the run that makes `out` keeps its trainer states; a run with other settings or data never meets them.

    Args:
        decides: everything that decides the outcome, as JSON.
    """
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    return _states_root(out) / digest


def forget_states(out: Path) -> None:
    """Remove the states of every run that was to make `out`; called when it is made."""
    shutil.rmtree(_states_root(out), ignore_errors=True)


def handed_over(out: Path) -> Path:
    """Where the run that makes `out` leaves its present weights for an engine to read; goes with its states."""
    return _states_root(out) / "handed-over"


def _states_root(out: Path) -> Path:
    return out.with_name(f"{out.name}.trainer")


class TrainerStates:
    """Numbered trainer states under one folder.

    Args:
        folder: where `step-NNNNNN` folders lie; the newest `KEPT_STATES` are kept.
        parts: name -> object with `state_dict` and `load_state_dict`, beside the model.
    """

    def __init__(self, folder: Path, model: torch.nn.Module, parts: dict[str, Any]) -> None:
        self._folder, self._model, self._parts = folder, model, parts

    def save(self, step: int, kept: Collection[int] = ()) -> None:
        """Write the state after `step` optimiser steps; those of the steps `kept` stay whatever their age.

        Raises `CheckpointError` when it cannot be written.
        """
        final = self._state(step)
        staged = self._folder / "unfinished"
        if is_sharded(self._model):
            self._save_shards(step, staged, final, kept)
            return
        with _writing(staged, final):
            _fresh(staged)
            tensors = {name: value.contiguous() for name, value in _untied(self._model.state_dict()).items()}
            save_file(tensors, staged / "model.safetensors")
            self._finish(step, staged, self._states_of(self._parts))
        self._replace(staged, final, kept)

    def _save_shards(self, step: int, staged: Path, final: Path, kept: Collection[int]) -> None:
        """The first process makes the folder, each writes its share, the first finishes it."""
        with _writing(staged, final):
            _on_first(lambda: _fresh(staged))
            save_shards(staged, self._model, self._parts["optimizer"])
            others = self._states_of(name for name in self._parts if name != "optimizer")
            _on_first(lambda: self._finish(step, staged, others))
        _on_first(lambda: self._replace(staged, final, kept))

    def _states_of(self, parts: Iterable[str]) -> dict[str, Any]:
        return {name: self._parts[name].state_dict() for name in parts}

    def _finish(self, step: int, staged: Path, parts: Mapping[str, Any]) -> None:
        torch.save({"parts": parts, "rng": torch.get_rng_state(), "step": step}, staged / "trainer.pt")
        for file in staged.iterdir():
            _fsync(file)

    def _replace(self, staged: Path, final: Path, kept: Collection[int]) -> None:
        shutil.rmtree(final, ignore_errors=True)
        staged.replace(final)
        _fsync(self._folder)
        for old in set(self._saved()[:-KEPT_STATES]) - set(map(self._state, kept)):
            shutil.rmtree(old)

    def resume(self) -> int:
        """Load the newest state; the number of steps it has seen, 0 when there is none.

        Raises `CheckpointError` when the newest state is corrupt.
        """
        saved = self._saved()
        return self._load(saved[-1], tuple(self._parts)) if saved else 0

    def load(self, step: int, parts: Sequence[str]) -> None:
        """The model, and these parts, of the state after `step` steps. Raises `CheckpointError` when it is corrupt."""
        self._load(self._state(step), parts)

    def _load(self, folder: Path, parts: Sequence[str]) -> int:
        try:
            state = torch.load(folder / "trainer.pt", weights_only=True, map_location="cpu")
            beside = tuple(name for name in parts if name != "optimizer")
            if (folder / SHARDS).exists():
                load_shards(folder, self._model, self._parts["optimizer"])
            elif is_sharded(self._model):
                spread(load_file(folder / "model.safetensors"), self._model)
                spread_moments(state["parts"]["optimizer"], self._model, self._parts["optimizer"])
            else:
                self._load_weights(load_file(folder / "model.safetensors"))
                beside = tuple(parts)
            for name in beside:
                self._parts[name].load_state_dict(state["parts"][name])
            torch.set_rng_state(state["rng"])
        except (SafetensorError, RuntimeError, OSError, EOFError, KeyError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"The trainer state {folder} is corrupt ({_first_line(error)}); delete that folder to go on from "
                "the one before it."
            ) from error
        return int(state["step"])

    def _load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        if weights.keys() != _untied(self._model.state_dict()).keys():
            raise RuntimeError("it holds the weights of another model")
        self._model.load_state_dict(weights, strict=False)

    def _state(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def _saved(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))


@contextmanager
def _writing(staged: Path, target: Path) -> Iterator[None]:
    """Nothing of a failed save stays behind."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors wrap a full disk in their own
        shutil.rmtree(staged, ignore_errors=True)
        raise CheckpointError(
            f"{target} could not be saved ({_first_line(error)}); free some space and run it again."
        ) from error


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _on_first(work: Callable[[], None]) -> None:
    """Done by the first of several processes while the others wait; what goes wrong there, all of them raise."""
    failed: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            work()
        except (OSError, RuntimeError) as error:
            failed = [_first_line(error)]
    dist.broadcast_object_list(failed)
    if failed[0] is not None:
        raise OSError(failed[0])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


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
