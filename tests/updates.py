"""Runs of policy gradient on the pupil of `tests.school`, and what may be done to one between playing and training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.config import Config
from flywheel.jobs import grpo
from flywheel.trainers.rl import PolicyGradient
from tests.school import School
from tests.tiny import Notes

VERSION = "grpo-iter-01"
Harm = Callable[[PolicyGradient], None]


def args_for(school: School, home: Path, **changes: Any) -> dict[str, Any]:
    given = {"init": school.policy, "tasks": str(school.tasks), "out": str(home / "grpo"), "version": VERSION}
    return {**given, "partition": VERSION, "iteration": 1, "seed": 3, **changes}


def play(school: School, config: Config) -> tuple[dict[str, Any], Notes]:
    """The stage's result, and what it said."""
    notes = Notes()
    return grpo.run(config, args_for(school, config.home_path), notes), notes


def before_update(monkeypatch: pytest.MonkeyPatch, number: int, harm: Harm) -> None:
    """Do harm to the trainer between playing and training, at one update or (-1) at each."""
    real = PolicyGradient.update

    def update(trainer: PolicyGradient, *given: Any) -> dict[str, float]:
        if number in (-1, trainer.updates):
            harm(trainer)
        return real(trainer, *given)

    monkeypatch.setattr(PolicyGradient, "update", update)


def scale_head(factor: float) -> Harm:
    """Sharper than taught (collapse), of another temperature than the engine's (mismatch), or (0) ignorant."""

    def harm(trainer: PolicyGradient) -> None:
        with torch.no_grad():
            trainer.learner.policy.model.model.language_model.norm.weight.mul_(factor)

    return harm
