"""Policy gradient that is saved and goes on in another process."""

from collections.abc import Callable, Sequence
from pathlib import Path

from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from tests.killing import in_child
from tests.tiny import Tiny

Made = Callable[[PolicyModel, Path], PolicyGradient]


def goes_on_alike(tiny: Tiny, rollouts: Sequence[Rollout], folder: Path, made: Made) -> None:
    """Four updates at once; two, a save, another process, and two more."""

    def run(states: Path, updates: int, save: bool) -> str:
        policy = tiny.fresh()
        trainer = made(policy, states)
        while trainer.updates < updates:
            trainer.update(rollouts, trainer.credit(rollouts))
        if save:
            trainer.save()
        return fingerprint(policy.model.parameters())

    expected = in_child(lambda: run(folder / "whole", 4, save=False))
    half = in_child(lambda: run(folder / "parts", 2, save=True))
    assert in_child(lambda: run(folder / "parts", 2, save=False)) == half != expected
    assert in_child(lambda: run(folder / "parts", 4, save=False)) == expected
