"""A made-up flywheel: real Dagster, real processes, a real store; only the learning is made up."""

import json
from pathlib import Path
from typing import Any

import dagster as dg

from flywheel.assets.catalogue import build_definitions
from flywheel.assets.driver import Event, FlywheelRun, run_flywheel
from flywheel.config import Config
from flywheel.evaluation.report import EpisodeResult, summarise, to_json
from flywheel.jobs.launcher import Launcher
from flywheel.resources.instance import driver_instance
from flywheel.resources.jobs import Jobs
from flywheel.types import PolicyRef
from flywheel.workspace import Workspace, write_policy


def make_config(home: Path, **flywheel: Any) -> Config:
    home.mkdir(exist_ok=True)
    knobs = {"max_iterations": 4, "min_iterations": 1, "patience": 1, "min_successes": 4, "steps": 3, **flywheel}
    return Config.model_validate(
        {
            "home": str(home),
            "model": {"device": "cpu"},
            "tasks": {"train": 24, "heldout": 12},
            "sft": {"steps": 3},
            "flywheel": knobs,
            "tracking": {"enabled": False},
        }
    )


QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class House:
    """One home with its instance, and what tests ask of it."""

    def __init__(self, config: Config, launcher: Launcher) -> None:
        self.config = config
        self.workspace = Workspace(config)
        self.instance = driver_instance(config)
        self.launcher = launcher
        self.events: list[Event] = []

    @property
    def definitions(self) -> dg.Definitions:
        return build_definitions(self.config, {"jobs": Jobs(self.workspace, self.launcher)})

    def materialize(self, *assets: str, partition: str | None = None, **options: Any) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_implicit_global_asset_job_def()
        keys = [dg.AssetKey(asset) for asset in assets]
        options["run_config"] = {**QUIET, **options.get("run_config", {})}
        return job.execute_in_process(instance=self.instance, partition_key=partition, asset_selection=keys, **options)

    def drive(self) -> FlywheelRun:
        self.events.clear()
        return run_flywheel(self.config, self.instance, self.events.append, self.launcher)

    def ran(self) -> list[str]:
        """Stages that ran, in order, and forgets them."""
        file = self.config.home_path / "ran.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line)["stage"] for line in lines]

    def knob(self, name: str, value: str) -> None:
        folder = self.config.home_path / "knobs"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(value)

    def latest(self, asset: str, partition: str | None = None) -> dg.AssetMaterialization:
        wanted = dg.AssetRecordsFilter(
            asset_key=dg.AssetKey(asset), asset_partitions=[partition] if partition else None
        )
        found = self.instance.fetch_materializations(wanted, limit=1).records[0].asset_materialization
        assert found is not None
        return found


def evaluate(house: House, version: str, solved: int, of: int = 20) -> None:
    """Put a checkpoint and its report where they belong."""
    folder = house.workspace.checkpoint_dir(version)
    folder.mkdir(parents=True, exist_ok=True)
    policy = PolicyRef(version, str(folder))
    write_policy(folder, policy)
    results = [EpisodeResult(f"task-{i}", "click", 1, False, float(i < solved)) for i in range(of)]
    path = house.workspace.report_path(version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(summarise(policy, "heldout", 0, results))))
