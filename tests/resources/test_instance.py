"""The instance: one set of settings, whichever way Dagster is started."""

import sqlite3
from pathlib import Path

import dagster as dg
import pytest
import yaml

from flywheel.config import Config
from flywheel.resources.instance import dagster_home, driver_instance, quick_sqlite, settings

ROOT = Path(__file__).parents[2]


def test_the_repositorys_file_says_what_a_home_gets() -> None:
    assert yaml.safe_load((ROOT / "dagster.yaml").read_text()) == settings(Path(".flywheel"))


def test_everything_lies_under_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(home=str(tmp_path / "home"))
    with dg.DagsterInstance.from_config(str(dagster_home(config))) as instance:
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
    with driver_instance(config) as instance:
        result = dg.materialize([nothing], instance=instance)
        assert result.success
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
    assert (tmp_path / "home" / "dagster" / "history" / "runs" / f"{result.run_id}.db").exists()
    with dg.DagsterInstance.from_config(str(dagster_home(config))) as instance:
        assert instance.get_run_by_id(result.run_id) is not None


@dg.asset
def nothing() -> None: ...


def test_quick_sqlite_keeps_events_and_leaves_no_trace(tmp_path: Path) -> None:
    config = Config(home=str(tmp_path))
    with quick_sqlite(), driver_instance(config) as instance:
        run_id = dg.materialize([nothing], instance=instance).run_id
        file = tmp_path / "dagster" / "history" / "runs" / f"{run_id}.db"
        assert file.with_name(f"{run_id}.db-wal").exists()
    # Closing the idle connections folds the log back into the file.
    assert not file.with_name(f"{run_id}.db-wal").exists()
    with sqlite3.connect(file) as connection:
        events = connection.execute("SELECT dagster_event_type FROM event_logs").fetchall()
    assert ("ASSET_MATERIALIZATION",) in events
    assert ("PIPELINE_SUCCESS",) in events
