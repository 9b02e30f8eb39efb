"""Stages as Dagster launches them on its own: the resource with its worker, Pipes, tracking, compute logs."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from flywheel.config import Config
from flywheel.resources.instance import dagster_home
from flywheel.resources.jobs import Jobs, jobs_resource
from flywheel.workspace import Workspace

STAGES = Path(__file__).parents[1] / "jobs"


@pytest.fixture(autouse=True)
def _stages_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAGES))


@dg.asset
def answered(context: dg.AssetExecutionContext, jobs: dg.ResourceParam[Jobs]) -> dg.MaterializeResult:
    run = jobs.run(context, "misbehave", "once", {"what": "answer"})
    return dg.MaterializeResult(
        metadata={**run.result, "link": run.tracking_link, "wall": run.wall_seconds, "own": run.stage_seconds}
    )


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(dagster_home(Config(home=str(tmp_path))))) as instance:
        yield instance


def test_a_stage_through_the_resource(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    workspace = Workspace(Config.model_validate({"home": str(tmp_path), "model": {"device": "cpu"}}))
    jobs = jobs_resource.configured({"stages": "launcher_stages", "grace_seconds": 0.3})
    result = dg.materialize([answered], instance=instance, resources={"workspace": workspace, "jobs": jobs})
    metadata = result.asset_materializations_for_node("answered")[0].metadata
    assert metadata["warm"].value is True
    assert "mlflow ui --backend-store-uri" in str(metadata["link"].value)
    assert 0.0 == metadata["own"].value < metadata["wall"].value  # type: ignore[operator]
    said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any(message.endswith("does answer") for message in said)
    logs = b"".join(path.read_bytes() for path in (tmp_path / "dagster" / "logs").rglob("*.out"))
    assert b"does answer" in logs
