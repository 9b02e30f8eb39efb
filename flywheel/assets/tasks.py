"""Tasks: the two splits that everything is trained and measured on."""

import time

import dagster as dg

from flywheel.jobs.tasks import build_tasks
from flywheel.workspace import Workspace


@dg.asset(group_name="alignment", kinds={"python"})
def tasks(workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Training and held-out tasks in OSWorld's JSON schema; which split a task is in follows from its content."""
    begun = time.monotonic()
    metadata = build_tasks(workspace)
    metadata["folder"] = dg.MetadataValue.path(workspace.tasks_dir)
    metadata["wall_seconds"] = metadata["stage_seconds"] = time.monotonic() - begun
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(workspace.tasks_key))
