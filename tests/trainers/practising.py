"""Policy gradient on given rollouts, by one process or by several: `torchrun ... -m tests.trainers.practising FOLDER`.

FOLDER holds `plan.json`: policy (a folder), config, and runs: name -> states folder and script; and `rollouts.pickle`.
A script is a list of calls: `[what, argument]`. The first process leaves `NAME.pt`: figures, and the whole weights.
"""

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from flywheel.config import Config
from flywheel.errors import CheckpointError
from flywheel.modeling.policy import load_policy
from flywheel.sections import ModelConfig, RlConfig, SftConfig
from flywheel.trainers.ensemble import Ensemble
from flywheel.trainers.learner import Learner
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.sharding import is_sharded
from flywheel.trainers.tuning import tuned
from flywheel.types import PolicyRef
from tests.limits import files_up_to

SHARED = {"lr": 1e-3, "minibatches": 2, "value_pretraining": 0, "group": 4}
PACK_TOKENS = 400


def start(config: Config, uri: str) -> PolicyModel:
    return tuned(*load_policy(config, PolicyRef("start", uri)), ModelConfig(bucket=64))


def practise(config: Config, uri: str, run: Mapping[str, Any], states: Path, rollouts: Sequence[Rollout]) -> Any:
    """Figures of each call, and the weights in the end; on other processes than the first, nothing."""
    learner = Learner(
        start(config, uri),
        RlConfig(**SHARED, **run["rl"]),
        Ensemble(),
        start=partial(start, config, uri),
        pack_tokens=PACK_TOKENS,
        horizon=48,
        seed=0,
    )
    if not learner.ensemble.first:
        learner.resume(states, {})
        learner.ensemble.follow(Exposed(learner))
        return None
    trainer = PolicyGradient(learner, states)
    figures = [call(trainer, what, given, states, list(rollouts)) for what, given in run["script"]]
    engine, _ = load_policy(config, PolicyRef("start", uri))
    learner._engine = engine if is_sharded(learner.policy.model) else None
    learner.hand_over()
    learner.ensemble.dismiss()
    model = engine if learner._engine else learner.policy.model
    return figures, {name: weight.detach().clone() for name, weight in model.named_parameters()}


def call(trainer: PolicyGradient, what: str, given: Any, states: Path, rollouts: list[Rollout]) -> Any:
    """One line of a script."""
    if what == "update":
        return trainer.update(rollouts, trainer.credit(rollouts))
    if what == "drift":
        return {"drift": trainer.drift(rollouts)}
    if what == "supervise":
        settings = SftConfig(lr=1e-3, batch=4, pack_tokens=PACK_TOKENS, held="weights")
        samples = [rollout.sample for rollout in rollouts]
        return trainer.learner.supervise(samples, settings, steps=2, seed=1, states=states / "round")
    if what == "save on a full disk":
        learner = Exposed(trainer.learner)
        trainer.learner.ensemble.announce("save_on_full_disk", given, trainer.updates)
        return learner.save_on_full_disk(given, trainer.updates)
    if what == "move_reference":
        return trainer.learner.move_reference()
    return getattr(trainer, what)(*given)


class Exposed:
    """A learner, and how it fares on a disk that is full for this very process."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def save_on_full_disk(self, room: int, step: int) -> str:
        try:
            with files_up_to(room):
                self._learner._states.save(step)
        except CheckpointError as error:
            return str(error)
        return "it was saved"


def main(folder: Path) -> None:
    PartialState(cpu=True)
    torch.set_num_threads(1)
    plan = json.loads((folder / "plan.json").read_text())
    rollouts = pickle.loads((folder / "rollouts.pickle").read_bytes())
    config = Config.model_validate(plan["config"])
    for name, run in plan["runs"].items():
        found = practise(config, plan["policy"], run, folder / run["states"], rollouts)
        if found:
            torch.save(found, folder / f"{name}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
