"""Two processes train what one trains, go on from its states and it from theirs: gloo on the CPU."""

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from flywheel.sections import ModelConfig, SftConfig
from flywheel.trainers.packing import rows_of, share_of
from flywheel.trainers.sft import train_sft
from flywheel.trainers.tuning import tuned
from flywheel.types import TrainingSample
from tests.tiny import Notes, Tiny, shown

STEPS, HALF = 6, 3
SETTINGS = {"lr": 2e-3, "min_lr": 2e-4, "weight_decay": 0.01, "batch": 4, "pack_tokens": 200}
TOLERANCE = 1e-4
"""Relative; sums are taken in another order, and AdamW's first steps magnify what that changes."""


@dataclass(frozen=True)
class Run:
    """Losses step by step, and the weights in the end."""

    losses: list[float]
    weights: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def samples(tiny: Tiny) -> list[TrainingSample]:
    return shown(tiny, 6)


def alone(tiny: Tiny, samples: list[TrainingSample], states: Path, *, save_every: int = 0) -> Run:
    policy, notes = tuned(copy.deepcopy(tiny.model), tiny.chat, ModelConfig(bucket=64)), Notes()
    settings = SftConfig(**SETTINGS, save_every=save_every)  # type: ignore[arg-type]
    train_sft(policy, samples, settings, steps=STEPS, seed=1, states=states, report=notes)
    named = {name: parameter.detach() for name, parameter in policy.model.named_parameters()}
    return Run([point["loss"] for point in notes.curve], named)


@pytest.fixture(scope="module")
def single(tiny: Tiny, samples: list[TrainingSample], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """One process, and the folder with its state at half time."""
    states = tmp_path_factory.mktemp("single") / "states"
    return alone(tiny, samples, states, save_every=HALF), states


@pytest.fixture(scope="module")
def double(
    tiny: Tiny, samples: list[TrainingSample], single: tuple[Run, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Run], Path]:
    """Two processes: all the way, and from the single process's half time; the folder with their own state at half."""
    folder = tmp_path_factory.mktemp("double")
    (folder / "from-one").symlink_to(single[1])
    runs = {
        "whole": {"steps": STEPS, "states": "states", "save_every": HALF},
        "resumed": {"steps": STEPS, "states": "from-one", "save_every": 0},
        "weights": {"steps": STEPS, "states": "weights", "save_every": 0, "held": "weights"},
        "gradients": {"steps": STEPS, "states": "gradients", "save_every": 0, "held": "gradients"},
    }
    plan = {"policy": tiny.policy.uri, "config": tiny.config.model_dump(), "sft": SETTINGS, "runs": runs}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "samples.pickle").write_bytes(pickle.dumps(samples))
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.trainers.together"]
    ended = subprocess.run([sys.executable, "-m", *launch, str(folder)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = {}
    for name in runs:
        losses = [point["loss"] for point in json.loads((folder / f"curve-{name}.json").read_text())]
        found[name] = Run(losses, torch.load(folder / f"weights-{name}.pt"))
    return found, folder / "states"


def assert_alike(found: Run, expected: Run) -> None:
    assert found.losses == pytest.approx(expected.losses[-len(found.losses) :], rel=TOLERANCE)
    assert found.weights.keys() == expected.weights.keys()
    for name, weight in found.weights.items():
        assert (weight - expected.weights[name]).norm() <= 10 * TOLERANCE * expected.weights[name].norm(), name


@pytest.mark.parametrize("held", ["whole", "weights", "gradients"])
def test_two_processes_train_what_one_trains(
    single: tuple[Run, Path], double: tuple[dict[str, Run], Path], held: str
) -> None:
    assert len(double[0][held].losses) == STEPS
    assert_alike(double[0][held], single[0])


def test_two_processes_go_on_from_the_state_of_one(
    single: tuple[Run, Path], double: tuple[dict[str, Run], Path]
) -> None:
    assert len(double[0]["resumed"].losses) == STEPS - HALF
    assert_alike(double[0]["resumed"], single[0])


def test_one_process_goes_on_from_the_state_of_two(
    tiny: Tiny, samples: list[TrainingSample], single: tuple[Run, Path], double: tuple[dict[str, Run], Path]
) -> None:
    (state,) = double[1].iterdir()
    assert sorted(file.name for file in state.iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "trainer.pt",
    ]
    found = alone(tiny, samples, double[1])
    assert len(found.losses) == STEPS - HALF
    assert_alike(found, single[0])


def test_each_process_gets_as_many_rows(samples: list[TrainingSample]) -> None:
    rows = list(rows_of(samples, 200))
    for world in (1, 2, 3, 4):
        shares = [share_of(rows, rank, world) for rank in range(world)]
        assert len({len(share) for share in shares}) == 1
        dealt = [sample for share in shares for row in share for sample in row]
        own = [sample for sample in dealt if sample.weights.any()]
        assert {sample.trajectory_id for sample in own} == {sample.trajectory_id for sample in samples}
        assert len(own) == len(samples)
        assert len(dealt) - len(own) < world
