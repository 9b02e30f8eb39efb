"""The trajectory store as assets see it: to read from. Writers are the heavy stages, in processes of their own."""

import dagster as dg

from flywheel.store.opening import open_store
from flywheel.store.store import TrajectoryStore


@dg.resource(required_resource_keys={"workspace"})
def store_resource(context: dg.InitResourceContext) -> TrajectoryStore:
    """The store of the workspace, opened when a run needs it."""
    return open_store(context.resources.workspace.config)
