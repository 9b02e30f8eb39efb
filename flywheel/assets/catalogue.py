"""All that Dagster should know, for one configuration."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from flywheel.assets import alignment, checks, control, evaluation, grpo, iterations, policies, tasks
from flywheel.assets.automation import JOBS, nightly, plateau_sensor
from flywheel.assets.partitions import ITERATIONS
from flywheel.assets.partitions import iterations as configured_iterations
from flywheel.assets.versions import with_code_version
from flywheel.config import Config
from flywheel.resources.jobs import jobs_resource
from flywheel.resources.store import store_resource
from flywheel.workspace import Workspace

MODULES = (tasks, alignment, iterations, grpo, control, evaluation)


def build_definitions(config: Config, resources: Mapping[str, Any] | None = None) -> dg.Definitions:
    """Definitions of a configuration; `resources` replace those that a run would make for itself."""
    partitions = configured_iterations(config)

    def configured(spec: dg.AssetSpec) -> dg.AssetSpec:
        if spec.partitions_def is ITERATIONS:
            spec = spec.replace_attributes(partitions_def=partitions)
        return with_code_version(config, spec)

    assets = [
        asset.map_asset_specs(configured)
        for asset in dg.load_assets_from_modules(MODULES)
        if isinstance(asset, dg.AssetsDefinition)
    ]
    return dg.Definitions(
        assets=[configured(policies.policy), *assets],
        asset_checks=dg.load_asset_checks_from_modules([checks]),
        jobs=JOBS,
        sensors=[plateau_sensor],
        schedules=[nightly],
        resources={
            "workspace": Workspace(config),
            "jobs": jobs_resource,
            "store": store_resource,
            **(resources or {}),
        },
        # The multiprocess executor costs about 10 s a step on a small machine, and heavy work has its own processes.
        executor=dg.in_process_executor,
    )
