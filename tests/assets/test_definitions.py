"""What Dagster is told, by configuration."""

import importlib
import shutil
from collections.abc import Callable

import dagster as dg
import pytest
from made_up_house import QUIET, House, evaluate

from flywheel.assets.automation import GROUPS, ITERATION
from flywheel.assets.catalogue import build_definitions
from flywheel.assets.intact import Lineage
from flywheel.assets.versions import SETTINGS, code_version
from flywheel.config import Config, known_keys, load_config
from flywheel.datasets.task_files import save_tasks
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import ConfigError, DataError
from flywheel.jobs.tasks import task_file

ASSETS = {
    *("tasks", "base_model", "demonstrations", "sft_checkpoint", "sft_eval_report"),
    *("policy", "trajectories", "sft_set", "checkpoint", "eval_report"),
    *("grpo_checkpoint", "grpo_eval_report", "control_checkpoint", "control_eval_report", "nightly_eval_report"),
}


def test_definitions_load_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_PROFILE", "embedded")
    monkeypatch.setenv("FLYWHEEL_SET", "seed=3;flywheel.max_iterations=15")
    module = importlib.reload(importlib.import_module("flywheel.definitions"))
    dg.Definitions.validate_loadable(module.defs)
    specs = {spec.key.to_user_string(): spec for spec in module.defs.resolve_all_asset_specs()}
    assert set(specs) == ASSETS
    for name in (*ITERATION, "policy", "grpo_checkpoint"):
        partitions = specs[name].partitions_def
        assert partitions is not None
        assert partitions.get_partition_keys()[-1] == "iter-15"
    monkeypatch.setenv("FLYWHEEL_SET", "flywheel.max_iteration=15")
    with pytest.raises(ConfigError, match=r"did you mean flywheel\.max_iterations"):
        importlib.reload(module)


def test_the_shape_of_the_loop() -> None:
    lineage = Lineage(build_definitions(Config()))

    def parents(name: str) -> set[str]:
        return {key.to_user_string() for key in lineage.parents(dg.AssetKey(name))}

    assert parents("trajectories") == {"policy", "tasks"}
    assert parents("sft_set") == {"trajectories", "demonstrations"}
    assert parents("checkpoint") == {"sft_set", "policy"}
    assert parents("grpo_checkpoint") == {"checkpoint", "tasks"}
    assert parents("policy") == set()
    assert lineage.checks(dg.AssetKey("trajectories")) == {"enough_successes"}
    checked = {name for name in ASSETS if lineage.checks(dg.AssetKey(name))}
    assert checked == {
        *("tasks", "trajectories", "sft_checkpoint", "checkpoint", "grpo_checkpoint"),
        *("eval_report", "grpo_eval_report"),
    }


def test_backfills_go_partition_by_partition() -> None:
    graph = build_definitions(Config()).resolve_asset_graph()
    for name in ITERATION:
        assert graph.get(dg.AssetKey(name)).backfill_policy == dg.BackfillPolicy.multi_run(1)


def test_every_asset_names_the_settings_that_decide_it() -> None:
    keys = set(known_keys())
    assert set(SETTINGS) == ASSETS - {"policy"}
    for settings in SETTINGS.values():
        for setting in settings:
            assert setting in keys or any(key.startswith(f"{setting}.") for key in keys), setting
    for job, assets in GROUPS.items():
        assert set(assets) <= ASSETS, job


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("rl.steps=7", {"grpo_checkpoint"}),
        ("flywheel.max_iterations=5", set()),
        ("model.threads=1", set()),
        ("rollout.samples=3", {"trajectories"}),
        ("eval.episodes=7", {name for name in ASSETS if name.endswith("report")}),
        ("seed=9", ASSETS - {"policy"}),
    ],
)
def test_code_versions_change_with_what_decides_the_asset(setting: str, changed: set[str]) -> None:
    before, after = load_config("embedded"), load_config("embedded", [setting])
    assert {name for name in SETTINGS if code_version(before, name) != code_version(after, name)} == changed


def test_overlapping_splits_block_what_comes_after(house: House) -> None:
    house.materialize("tasks")
    train = load_tasks(task_file(house.workspace, "train"))
    heldout = load_tasks(task_file(house.workspace, "heldout"))
    save_tasks([*train, heldout[0]], house.workspace.tasks_dir / "train.jsonl")
    result = run_checks(house, "tasks", "splits_do_not_overlap")
    assert not result.passed
    assert result.metadata["shared"].value == 1


def test_a_checkpoint_that_does_not_load_blocks_evaluation(house: House) -> None:
    house.materialize(*GROUPS["alignment"])
    house.materialize(*ITERATION, partition="iter-01")
    house.ran()
    (house.workspace.checkpoint_dir("iter-01") / "skill").unlink()
    result = run_checks(house, "checkpoint", "checkpoint_loads")
    assert not result.passed
    assert str(result.description).endswith("is corrupt; make the checkpoint again.")
    shutil.rmtree(house.workspace.checkpoint_dir("iter-01"))
    result = run_checks(house, "checkpoint", "checkpoint_loads")
    assert "policy.json is missing" in str(result.description)


def test_a_ruined_policy_gradient_is_noticed(build_house: Callable[..., House]) -> None:
    house = build_house()
    evaluate(house, "iter-01", 12)
    evaluate(house, "grpo-iter-01", 6)
    with pytest.raises(DataError, match="materialise grpo_eval_report first"):
        run_checks(house, "grpo_eval_report", "policy_gradient_has_not_collapsed", raise_on_error=True)
    house.instance.report_runless_asset_event(dg.AssetMaterialization("grpo_eval_report", partition="iter-01"))
    assert not run_checks(house, "grpo_eval_report", "policy_gradient_has_not_collapsed").passed


def run_checks(house: House, asset: str, check: str, *, raise_on_error: bool = False) -> dg.AssetCheckEvaluation:
    """One check alone, as the UI runs it: without a partition, so it looks at the latest."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), check)
    job = dg.define_asset_job("only_checks", selection=dg.AssetSelection.checks(key))
    resolved = dg.Definitions.merge(house.definitions, dg.Definitions(jobs=[job])).resolve_job_def("only_checks")
    result = resolved.execute_in_process(instance=house.instance, run_config=QUIET, raise_on_error=raise_on_error)
    return result.get_asset_check_evaluations()[0]
