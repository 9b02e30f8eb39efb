"""The policy that an iteration starts from: reported by whoever trained it, looked up by whoever needs it.

Dagster refuses a cycle across assets however it is partitioned. So the loop is closed by an external asset: the run
that trains `checkpoint[k]` reports `policy[k + 1]`, the one that trains `sft_checkpoint` reports `policy[1]`.
"""

from pathlib import Path
from typing import Any

import dagster as dg

from flywheel.assets.partitions import ITERATIONS, iteration_of
from flywheel.errors import PolicyError
from flywheel.resources.jobs import StageRun
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace, iteration_name, read_policy

policy = dg.AssetSpec(
    "policy",
    group_name="flywheel",
    partitions_def=ITERATIONS,
    kinds={"pytorch"},
    description="The policy that an iteration starts from, reported by the run that trained it.",
)


def report_policy(context: dg.AssetExecutionContext, trained: PolicyRef, iteration: int, run: StageRun) -> None:
    """Report `trained` as the policy of `iteration`, also past the cap, which may be raised later.

    The observation goes first: staleness of an external dependency reads observations only, and whatever read the
    policy before a later observation counts as stale.
    """
    metadata: dict[str, Any] = {
        "version": trained.version,
        "uri": dg.MetadataValue.path(trained.uri),
        "fingerprint": trained.fingerprint,
        "reported_by": context.asset_key,
        "run_folder": dg.MetadataValue.path(run.run_dir),
    }
    if run.tracking_link:
        metadata["mlflow"] = run.tracking_link
    tags = {"dagster/data_version": trained.fingerprint or trained.version}
    partition = iteration_name(iteration)
    context.log_event(dg.AssetObservation(policy.key, partition=partition, metadata=metadata, tags=tags))
    context.log_event(dg.AssetMaterialization(policy.key, partition=partition, metadata=metadata, tags=tags))


def incoming_policy(instance: dg.DagsterInstance, partition: str) -> PolicyRef:
    """The policy that was reported for an iteration. Raises `PolicyError` naming what to materialise."""
    iteration = iteration_of(partition)
    source = f"checkpoint[{iteration_name(iteration - 1)}]" if iteration > 1 else "sft_checkpoint"
    wanted = dg.AssetRecordsFilter(asset_key=policy.key, asset_partitions=[partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    if not records:
        raise PolicyError(f"No policy has been reported for {partition}; materialise {source}, which reports it.")
    materialization = records[0].asset_materialization
    assert materialization is not None
    folder = Path(str(materialization.metadata["uri"].value))
    if not (folder / "policy.json").is_file():
        raise PolicyError(f"The policy of {partition} is gone from {folder}; materialise {source} again.")
    return read_policy(folder)


def trained_policy(workspace: Workspace, version: str, asset: str) -> PolicyRef:
    """A checkpoint of this experiment. Raises `PolicyError` naming the asset to materialise."""
    folder = workspace.checkpoint_dir(version)
    if not (folder / "policy.json").is_file():
        raise PolicyError(f"There is no checkpoint '{version}' in {folder}; materialise {asset} first.")
    return read_policy(folder)
