"""Guards on the asset: a table of what they saw and did, and why a run was paused; and the evaluations on the way."""

import dagster as dg
import pytest
from made_up_house import House

from flywheel.errors import TrainingPausedError

ASSETS = ("trajectories", "sft_set", "checkpoint")


def trained(house: House) -> None:
    house.materialize("tasks", "base_model", "demonstrations", "sft_checkpoint")
    house.materialize(*ASSETS, partition="iter-01")


def test_the_asset_shows_every_guard_and_every_reaction(house: House) -> None:
    trained(house)
    house.materialize("grpo_checkpoint", partition="iter-01")
    metadata = house.latest("grpo_checkpoint", "iter-01").metadata
    table = str(metadata["guards"].value)
    assert "| entropy | 0.8 | 0.251 | below 0.5 | below 0.3 | 1 | 1 |" in table
    assert "| ref_kl | not measured | not measured | above 0.05 |  | 0 | 0 |" in table
    assert table.endswith("- update 3: entropy is 0.25, below 0.3: the learning rate is 1e-4")
    assert metadata["guard_reactions"].value == 1


def test_the_asset_shows_how_success_went_and_which_policy_was_published(house: House) -> None:
    trained(house)
    house.materialize("grpo_checkpoint", partition="iter-01")
    metadata = house.latest("grpo_checkpoint", "iter-01").metadata
    assert str(metadata["validation"].value).endswith("| 2 | 50.0% | 44.0% to 56.0% |")
    assert metadata["kept_update"].value == 2


def test_a_paused_run_leaves_its_reason_on_the_asset(house: House) -> None:
    trained(house)
    reason = "Policy gradient paused: zero_variance is 1, above 0.9 after update 3; turn the flywheel again."
    house.knob("paused", reason)
    with pytest.raises(TrainingPausedError, match="zero_variance is 1"):
        house.materialize("grpo_checkpoint", partition="iter-01")
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey("grpo_checkpoint"), asset_partitions=["iter-01"])
    observation = house.instance.fetch_observations(wanted, limit=1).records[0].asset_observation
    assert observation is not None
    assert observation.metadata["paused"].value == reason
    assert not house.instance.fetch_materializations(wanted, limit=1).records
