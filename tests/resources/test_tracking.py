"""MLflow runs, written to a real SQLite file by the background thread."""

from pathlib import Path

from mlflow import MlflowClient

from flywheel.config import Config
from flywheel.resources.tracking import Tracking

STEPS = 700


def test_parameters_curves_and_numbers_arrive(tmp_path: Path) -> None:
    config = Config(home=str(tmp_path), experiment="quick")
    with Tracking.of(config) as tracking:
        assert tracking is not None
        run = tracking.start("sft-iter-01", config, {"steps": 3, "init": {"version": "sft"}})
        for step in range(STEPS):
            run.add({"step": step, "loss": 1 / (step + 1), "rate": 0.1})
        link = run.finish({"seconds": 2.5, "policy": {}, "by_family": {}, "tokens": 7})
        broken = tracking.start("grpo-iter-01", config, {})
        broken.fail()
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db" in link
    client = MlflowClient(config.tracking_uri)
    experiment = client.get_experiment_by_name("quick")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    found = runs["sft-iter-01"]
    assert f"run {found.info.run_id}:" in link
    assert found.info.status == "FINISHED"
    assert found.data.params["sft.lr"] == str(config.sft.lr)
    assert found.data.params["args.init.version"] == "sft"
    assert len(found.data.params) > 70
    assert (found.data.metrics["seconds"], found.data.metrics["tokens"]) == (2.5, 7.0)
    curve = client.get_metric_history(found.info.run_id, "loss")
    assert [point.step for point in sorted(curve, key=lambda point: point.step)] == list(range(STEPS))
    assert runs["grpo-iter-01"].info.status == "FAILED"


def test_off_by_one_setting(tmp_path: Path) -> None:
    config = Config.model_validate({"home": str(tmp_path), "tracking": {"enabled": False}})
    with Tracking.of(config) as tracking:
        assert tracking is None
    assert not list(tmp_path.iterdir())


def test_a_tracking_server_that_cannot_be_used_stops_nothing(tmp_path: Path) -> None:
    config = Config.model_validate({"home": str(tmp_path), "tracking": {"uri": f"sqlite:///{tmp_path}/no/such.db"}})
    (tmp_path / "no").write_text("a file where a folder should be")
    with Tracking.of(config) as tracking:
        assert tracking is not None
        run = tracking.start("sft", config, {})
        run.add({"step": 0, "loss": 1.0})
        assert run.finish({"seconds": 1.0}).startswith(f"Tracking at {config.tracking_uri} failed: ")
