"""The loop through the external asset: reporting, the guard, staleness."""

import os
from collections.abc import Callable

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from made_up_house import House

from flywheel.assets.automation import GROUPS, ITERATION
from flywheel.assets.policies import incoming_policy, policy
from flywheel.errors import PartitionBusyError, PolicyError
from flywheel.store.store import TrajectoryStore


def observed(house: House, partition: str) -> dg.EventLogRecord:
    wanted = dg.AssetRecordsFilter(asset_key=policy.key, asset_partitions=[partition])
    return house.instance.fetch_observations(wanted, limit=1).records[0]


@pytest.mark.parametrize(
    ("partition", "wanted"),
    [("iter-01", "materialise sft_checkpoint"), ("iter-03", r"materialise checkpoint\[iter-02\]")],
)
def test_a_missing_policy_is_a_sentence_before_anything_runs(house: House, partition: str, wanted: str) -> None:
    with pytest.raises(PolicyError, match=f"No policy has been reported for {partition}; {wanted}"):
        house.materialize("trajectories", partition=partition)
    assert house.ran() == []


def test_other_missing_inputs_are_sentences_too(house: House) -> None:
    with pytest.raises(PolicyError, match=r"no checkpoint 'iter-02' in .*; materialise checkpoint\[iter-02\] first"):
        house.materialize("grpo_checkpoint", partition="iter-02")
    with pytest.raises(PolicyError, match="No policy has been evaluated yet"):
        house.materialize("nightly_eval_report", partition="2026-01-02")


def test_training_reports_the_next_policy_observation_first(build_house: Callable[..., House]) -> None:
    house = build_house(max_iterations=2)
    house.materialize(*GROUPS["alignment"])
    assert incoming_policy(house.instance, "iter-01").version == "sft"
    house.materialize(*ITERATION[:3], partition="iter-01")
    materialized = house.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=policy.key, asset_partitions=["iter-02"]), limit=1
    ).records[0]
    assert observed(house, "iter-02").storage_id < materialized.storage_id
    trajectories = house.latest("trajectories", "iter-01")
    assert int(trajectories.tags["dagster/input_event_pointer/policy"]) < observed(house, "iter-02").storage_id

    # Training again makes what was rolled out by the earlier policy stale, and only that.
    house.materialize("trajectories", partition="iter-02")
    assert stale(house, "iter-01", "iter-02") == []
    house.knob("gain-iter-01", "0.05")
    house.materialize("checkpoint", partition="iter-01")
    assert stale(house, "iter-01", "iter-02") == ["iter-02"]

    # Past the cap too: whoever raises it goes on from there.
    house.materialize(*ITERATION[1:3], partition="iter-02")
    raised = build_house(max_iterations=3)
    raised.materialize("trajectories", partition="iter-03")
    assert incoming_policy(raised.instance, "iter-03").version == "iter-02"


def stale(house: House, *partitions: str) -> list[str]:
    """Partitions of `trajectories` that the UI marks as outdated."""
    graph = house.definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(house.instance, graph, LoadingContextForTest(house.instance))
    key = dg.AssetKey("trajectories")
    return [partition for partition in partitions if resolver.get_status(key, partition) == StaleStatus.STALE]


def test_a_policy_whose_folder_is_gone(house: House) -> None:
    house.materialize(*GROUPS["alignment"])
    (house.workspace.checkpoint_dir("sft") / "policy.json").unlink()
    with pytest.raises(PolicyError, match=r"The policy of iter-01 is gone from .*; materialise sft_checkpoint again"):
        incoming_policy(house.instance, "iter-01")


def test_re_materialising_replaces_exactly_that_partition(house: House) -> None:
    house.materialize(*GROUPS["alignment"])
    for _ in range(2):
        house.materialize("trajectories", partition="iter-01")
    store = TrajectoryStore(house.config.store_root)
    head = store.head("iter-01")
    assert head is not None
    assert (head.attempt, head.episodes) == (2, 20)
    assert store.partitions() == ["eval-sft", "iter-01"]
    versions = house.latest("trajectories", "iter-01").tags
    assert versions["dagster/data_version"] == "iter-01/2"


def test_a_partition_that_another_process_writes_is_a_sentence(house: House) -> None:
    house.materialize(*GROUPS["alignment"])
    store = TrajectoryStore(house.config.store_root)
    store.begin("iter-01")
    try:
        with pytest.raises(PartitionBusyError, match=f"iter-01.* {os.getpid()}"):
            house.materialize("trajectories", partition="iter-01")
    finally:
        store.release("iter-01")
    house.materialize("trajectories", partition="iter-01")
