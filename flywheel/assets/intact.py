"""Is what an asset's materialisation stands for still there, and still what its upstream and settings ask for?"""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from flywheel.assets.control import control_version
from flywheel.assets.grpo import grpo_version
from flywheel.assets.history import SFT, read_report
from flywheel.assets.partitions import iteration_of
from flywheel.assets.versions import code_version
from flywheel.errors import DataError
from flywheel.jobs.tasks import SPLITS
from flywheel.store.opening import open_store
from flywheel.workspace import Workspace

CODE_VERSION = "dagster/code_version"


def latest(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> dg.EventLogRecord | None:
    """The newest materialisation of an asset, or of one partition of it."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition else None)
    return next(iter(instance.fetch_materializations(wanted, limit=1).records), None)


class Lineage:
    """What depends on what, and which checks guard it."""

    def __init__(self, definitions: dg.Definitions) -> None:
        self._specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
        self._checks = {key for checks in definitions.asset_checks or () for key in checks.check_keys}

    def parents(self, asset: dg.AssetKey) -> list[dg.AssetKey]:
        """Keys of the direct inputs."""
        return [dep.asset_key for dep in self._specs[asset].deps]

    def checks(self, asset: dg.AssetKey) -> set[str]:
        """Names of the asset's checks."""
        return {check.name for check in self._checks if check.asset_key == asset}

    def partition(self, asset: dg.AssetKey, partition: str | None) -> str | None:
        """The partition as it applies to an asset: None for one that has none."""
        return partition if self._specs[asset].partitions_def else None


def is_current(
    instance: dg.DagsterInstance, lineage: Lineage, workspace: Workspace, key: dg.AssetKey, partition: str | None
) -> bool:
    """Materialised with today's settings after all its inputs, passed by its checks, and its files are there."""
    record = latest(instance, key, lineage.partition(key, partition))
    if record is None or record.asset_materialization is None:
        return False
    name = key.to_user_string()
    if (record.asset_materialization.tags or {}).get(CODE_VERSION) != code_version(workspace.config, name):
        return False
    for parent in lineage.parents(key):
        above = latest(instance, parent, lineage.partition(parent, partition))
        if above is None or above.storage_id > record.storage_id:
            return False
    passed = {check.check_name for check in check_evaluations(instance, record.run_id, key) if check.passed}
    return lineage.checks(key) <= passed and _is_there(workspace, name, partition)


def check_evaluations(
    instance: dg.DagsterInstance, run_id: str, asset: dg.AssetKey | None = None
) -> list[dg.AssetCheckEvaluation]:
    """How the checks of a run (of one asset) ended."""
    found = []
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        assert entry.dagster_event is not None
        evaluation = entry.dagster_event.asset_check_evaluation_data
        if asset is None or evaluation.asset_key == asset:
            found.append(evaluation)
    return found


def _is_there(workspace: Workspace, asset: str, partition: str | None) -> bool:
    if asset in PLAIN:
        return PLAIN[asset](workspace)
    assert partition is not None
    return BY_ITERATION[asset](workspace, partition)


def _trained(workspace: Workspace, version: str) -> bool:
    return (workspace.checkpoint_dir(version) / "policy.json").is_file()


def _reported(workspace: Workspace, version: str) -> bool:
    try:
        read_report(workspace, version)
    except DataError:
        return False
    return True


def _is_set(folder: Path) -> bool:
    return (folder / "dataset_info.json").is_file()


def _sealed(workspace: Workspace, partition: str) -> bool:
    store = open_store(workspace.config)
    return store.head(partition, workspace.config.experiment) is not None


PLAIN: dict[str, Callable[[Workspace], bool]] = {
    "tasks": lambda house: all((house.tasks_dir / f"{split}.jsonl").is_file() for split in SPLITS),
    "demonstrations": lambda house: _is_set(house.demonstrations_dir),
    "base_model": lambda house: _trained(house, "base"),
    "sft_checkpoint": lambda house: _trained(house, SFT),
    "sft_eval_report": lambda house: _reported(house, SFT),
}
BY_ITERATION: dict[str, Callable[[Workspace, str], bool]] = {
    "trajectories": _sealed,
    "sft_set": lambda house, key: _is_set(house.set_dir(iteration_of(key))),
    "checkpoint": _trained,
    "eval_report": _reported,
    "grpo_checkpoint": lambda house, key: _trained(house, grpo_version(key)),
    "grpo_eval_report": lambda house, key: _reported(house, grpo_version(key)),
    "control_checkpoint": lambda house, key: _trained(house, control_version(key)),
    "control_eval_report": lambda house, key: _reported(house, control_version(key)),
}
