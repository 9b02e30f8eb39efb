"""Checkpoints: whole or not there, and damage is one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.errors import CheckpointError
from flywheel.modeling.policy import load_policy
from flywheel.trainers.checkpoints import (
    KEPT_STATES,
    TrainerStates,
    forget_states,
    save_policy,
    states_folder,
)
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.optimisation import Optimisation, constant
from flywheel.types import PolicyRef
from flywheel.workspace import read_policy
from tests.limits import files_up_to
from tests.tiny import Tiny


def changed(policy: PolicyModel) -> PolicyModel:
    with torch.no_grad():
        policy.trainable[0].add_(1.0)
    return policy


def optimisation_of(policy: PolicyModel) -> Optimisation:
    return Optimisation(
        policy.trainable, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, schedule=constant, grad_clip=1.0
    )


def one_step(policy: PolicyModel, optimisation: Optimisation) -> None:
    """Random gradients: what they are does not matter here, that they come from the generator does."""
    optimisation.backward(sum((p * torch.randn_like(p)).sum() for p in policy.trainable))  # type: ignore[arg-type]
    optimisation.step()


def ref_of(policy: PolicyModel, folder: Path) -> PolicyRef:
    return PolicyRef(folder.name, str(folder), "before", fingerprint(policy.model.parameters()))


def test_a_policy_comes_back(tiny: Tiny, tmp_path: Path) -> None:
    policy, folder = changed(tiny.fresh()), tmp_path / "deep" / "iter-01"
    ref = save_policy(policy.model, tiny.chat.processor, ref_of(policy, folder), folder)
    assert read_policy(folder) == ref
    model, _ = load_policy(tiny.config, ref)
    assert fingerprint(model.parameters()) == ref.fingerprint != tiny.policy.fingerprint
    assert [path.name for path in folder.parent.iterdir()] == ["iter-01"]


def test_a_folder_that_moved_is_found_where_it_is(tiny: Tiny, tmp_path: Path) -> None:
    policy, folder = tiny.fresh(), tmp_path / "old"
    save_policy(policy.model, tiny.chat.processor, ref_of(policy, folder), folder)
    moved = folder.rename(tmp_path / "new")
    assert read_policy(moved).uri == str(moved)


def test_a_policy_that_is_saved_again_replaces_the_old_one(tiny: Tiny, tmp_path: Path) -> None:
    policy, folder = tiny.fresh(), tmp_path / "iter-01"
    save_policy(policy.model, tiny.chat.processor, ref_of(policy, folder), folder)
    (folder / "left-over").touch()
    newer = ref_of(changed(policy), folder)
    save_policy(policy.model, tiny.chat.processor, newer, folder)
    assert read_policy(folder) == newer
    assert not (folder / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["iter-01"]


@pytest.mark.parametrize("room", [0, 100, 1_000_000])
def test_a_full_disk_loses_nothing(tiny: Tiny, tmp_path: Path, room: int) -> None:
    policy, folder = tiny.fresh(), tmp_path / "iter-01"
    older = ref_of(policy, folder)
    save_policy(policy.model, tiny.chat.processor, older, folder)
    with files_up_to(room), pytest.raises(CheckpointError, match=r"could not be saved.*free some space") as caught:
        save_policy(changed(policy).model, tiny.chat.processor, ref_of(policy, folder), folder)
    assert "\n" not in str(caught.value)
    assert read_policy(folder) == older
    assert fingerprint(load_policy(tiny.config, older)[0].parameters()) == older.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["iter-01"]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.1])
def test_a_full_disk_leaves_the_trainer_state_before(tiny: Tiny, tmp_path: Path, share: float) -> None:
    """Full from the start, in the middle of the weights, and in the middle of the optimiser's two moments."""
    policy = tiny.fresh()
    optimisation = optimisation_of(policy)
    states = TrainerStates(tmp_path, policy.model, optimisation.parts)
    one_step(policy, optimisation)
    states.save(1)
    after_one = fingerprint(policy.model.parameters())
    one_step(policy, optimisation)
    room = int(share * (tmp_path / "step-000001" / "model.safetensors").stat().st_size)
    with files_up_to(room), pytest.raises(CheckpointError, match=r"could not be saved.*free some space"):
        states.save(2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert states.resume() == 1
    assert fingerprint(policy.model.parameters()) == after_one


def test_a_state_brings_everything_back(tiny: Tiny, tmp_path: Path) -> None:
    """Model, moments, schedule and random generator: the steps after it are the same steps."""
    torch.manual_seed(3)
    policy = tiny.fresh()
    optimisation = optimisation_of(policy)
    states = TrainerStates(tmp_path, policy.model, optimisation.parts)
    one_step(policy, optimisation)
    states.save(1)
    one_step(policy, optimisation)
    expected = fingerprint(policy.model.parameters())
    torch.manual_seed(99)
    other = changed(tiny.fresh())
    resumed = optimisation_of(other)
    assert TrainerStates(tmp_path, other.model, resumed.parts).resume() == 1
    one_step(other, resumed)
    assert fingerprint(other.model.parameters()) == expected


def test_the_newest_states_are_kept(tiny: Tiny, tmp_path: Path) -> None:
    policy = tiny.fresh()
    states = TrainerStates(tmp_path, policy.model, optimisation_of(policy).parts)
    assert states.resume() == 0
    for step in (1, 2, 3, 10):
        states.save(step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000010"]
    assert KEPT_STATES == 2
    assert states.resume() == 10


def test_the_best_state_is_kept_whatever_its_age_and_brings_back_what_is_asked_for(tiny: Tiny, tmp_path: Path) -> None:
    policy = tiny.fresh()
    optimisation = optimisation_of(policy)
    states = TrainerStates(tmp_path, policy.model, optimisation.parts)
    one_step(policy, optimisation)
    best, rate = fingerprint(policy.model.parameters()), optimisation.scheduler.state_dict()
    for step in (1, 2, 3, 10):
        states.save(step, {1})
        one_step(policy, optimisation)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000003", "step-000010"]
    states.load(1, ("optimizer",))
    assert fingerprint(policy.model.parameters()) == best
    assert optimisation.scheduler.state_dict() != rate, "it was not asked for"


def test_a_scaled_learning_rate_survives_a_step_and_a_state(tiny: Tiny, tmp_path: Path) -> None:
    policy = tiny.fresh()
    optimisation = optimisation_of(policy)
    optimisation.scale_lr(0.5)
    optimisation.scale_lr(0.25)
    one_step(policy, optimisation)
    TrainerStates(tmp_path, policy.model, optimisation.parts).save(1)
    other = tiny.fresh()
    resumed = optimisation_of(other)
    TrainerStates(tmp_path, other.model, resumed.parts).resume()
    assert [one.optimizer.param_groups[0]["lr"] for one in (optimisation, resumed)] == [2.5e-4, 2.5e-4]
    resumed.scale_lr(1.0)
    assert resumed.optimizer.param_groups[0]["lr"] == 1e-3


def _half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "weights cut": lambda state: _half(state / "model.safetensors"),
    "weights empty": lambda state: (state / "model.safetensors").write_bytes(b""),
    "weights gone": lambda state: (state / "model.safetensors").unlink(),
    "trainer cut": lambda state: _half(state / "trainer.pt"),
    "trainer empty": lambda state: (state / "trainer.pt").write_bytes(b""),
    "trainer is no pickle": lambda state: (state / "trainer.pt").write_bytes(b"hello, this is no state"),
    "trainer gone": lambda state: (state / "trainer.pt").unlink(),
    "trainer of another kind": lambda state: torch.save({"step": 2}, state / "trainer.pt"),
    "trainer hostile": lambda state: torch.save({"step": print}, state / "trainer.pt"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_corrupt_state_is_one_sentence_and_the_one_before_it_serves(tiny: Tiny, tmp_path: Path, damage: str) -> None:
    policy = tiny.fresh()
    states = TrainerStates(tmp_path, policy.model, optimisation_of(policy).parts)
    states.save(1)
    states.save(2)
    DAMAGES[damage](tmp_path / "step-000002")
    with pytest.raises(CheckpointError, match=r"step-000002 is corrupt.*delete that folder") as caught:
        states.resume()
    assert "\n" not in str(caught.value)
    for file in (tmp_path / "step-000002").iterdir():
        file.unlink()
    (tmp_path / "step-000002").rmdir()
    assert states.resume() == 1


def test_a_state_of_another_model_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    other = torch.nn.Linear(2, 2)
    TrainerStates(tmp_path, other, {}).save(1)
    with pytest.raises(CheckpointError, match="weights of another model"):
        TrainerStates(tmp_path, tiny.fresh().model, {}).resume()


def test_states_belong_to_what_decides_the_run(tmp_path: Path) -> None:
    out = tmp_path / "iter-01"
    folders = {states_folder(out, {"lr": lr}, "set") for lr in (0.1, 0.2)}
    assert len(folders) == 2
    assert states_folder(out, {"lr": 0.1}, "set") in folders
    for folder in folders:
        folder.mkdir(parents=True)
    forget_states(out)
    assert list(tmp_path.iterdir()) == []
    forget_states(out)
