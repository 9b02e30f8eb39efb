"""What the sensor and the schedule decide."""

import datetime
from collections.abc import Callable

import dagster as dg
import pytest
from made_up_house import House, evaluate

from flywheel.assets.automation import nightly, plateau_sensor
from flywheel.assets.lock import driving
from flywheel.workspace import iteration_name


def evaluated(house: House, *solved: int) -> None:
    for iteration, count in enumerate(solved):
        evaluate(house, iteration_name(iteration) if iteration else "sft", count)
    materialization = dg.AssetMaterialization("eval_report", partition=iteration_name(len(solved) - 1))
    house.instance.report_runless_asset_event(materialization)


def tick(house: House) -> dg.RunRequest | str:
    """What the sensor wants: a run, or why it skips."""
    definitions = house.definitions
    with dg.build_sensor_context(
        instance=house.instance,
        repository_def=definitions.get_repository_def(),
        resources={"workspace": house.workspace},
    ) as context:
        data = plateau_sensor.evaluate_tick(context)
    return data.run_requests[0] if data.run_requests else str(data.skip_message)


def test_runs_by_default_and_waits_for_an_evaluation(house: House) -> None:
    assert plateau_sensor.default_status == dg.DefaultSensorStatus.RUNNING
    assert "No new materialization" in str(tick(house))


def test_rising_success_starts_the_next_iteration(house: House) -> None:
    evaluated(house, 8, 10)
    request = tick(house)
    assert isinstance(request, dg.RunRequest)
    assert (request.job_name, request.partition_key) == ("flywheel_iteration", "iter-02")
    assert request.run_key
    assert request.run_key.startswith("default/flywheel_iteration/iter-02/")
    assert "best so far: iteration 1" in request.tags["flywheel/reason"]


@pytest.mark.parametrize(("solved", "seed"), [((8, 12, 11), "iter-01"), ((12, 11, 10), "iter-01")])
def test_a_plateau_starts_policy_gradient_on_the_best(
    build_house: Callable[..., House], solved: tuple[int, ...], seed: str
) -> None:
    house = build_house(patience=1, min_iterations=2)
    evaluated(house, *solved)
    request = tick(house)
    assert isinstance(request, dg.RunRequest)
    assert (request.job_name, request.partition_key) == ("policy_gradient", seed)


def test_skips_what_exists_already(house: House) -> None:
    evaluate(house, "iter-02", 12)
    evaluated(house, 8, 10)
    assert tick(house) == "iter-02 has been evaluated already."


def test_skips_when_policy_gradient_has_run(house: House) -> None:
    evaluate(house, "grpo-iter-01", 12)
    evaluated(house, 8, 10)
    assert tick(house) == "Policy gradient has run; the flywheel is finished."


def test_skips_after_a_collapse(house: House) -> None:
    evaluated(house, 12, 8)
    assert str(tick(house)).startswith("Success fell by 20.0% from sft to iter-01")


def test_skips_without_the_starting_point(house: House) -> None:
    evaluate(house, "iter-01", 8)
    house.instance.report_runless_asset_event(dg.AssetMaterialization("eval_report", partition="iter-01"))
    assert str(tick(house)).startswith("Policy 'sft' has no evaluation report")


def test_skips_while_a_driver_is_at_work(house: House) -> None:
    evaluated(house, 8, 10)
    with driving(house.workspace):
        assert tick(house) == "`flywheel demo` is at work and goes on by itself."


def test_skips_while_the_next_iteration_runs(house: House) -> None:
    evaluated(house, 8, 10)
    job = house.definitions.resolve_job_def("flywheel_iteration")
    house.instance.create_run_for_job(
        job, status=dg.DagsterRunStatus.STARTED, tags={"dagster/partition": "iter-02"}, asset_selection=frozenset()
    )
    assert tick(house) == "A run of iter-02 is in progress."


def night(house: House) -> dg.RunRequest | dg.SkipReason:
    at = datetime.datetime(2026, 3, 4, 3, tzinfo=datetime.UTC)
    context = dg.build_schedule_context(
        instance=house.instance, scheduled_execution_time=at, resources={"workspace": house.workspace}
    )
    return nightly(context)


def test_nightly_takes_the_day_as_its_partition_and_the_best_policy(house: House) -> None:
    assert isinstance(night(house), dg.SkipReason)
    evaluated(house, 8, 12, 10)
    evaluate(house, "control-iter-02", 20)
    request = night(house)
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == "2026-03-04"
    (house.workspace.checkpoint_dir("iter-01") / "skill").write_text("0.6")
    (house.workspace.checkpoint_dir("iter-02") / "skill").write_text("0.5")
    house.materialize("tasks")
    house.materialize("nightly_eval_report", partition="2026-03-04")
    metadata = house.latest("nightly_eval_report", "2026-03-04").metadata
    assert (metadata["policy"].value, metadata["success_rate"].value) == ("iter-01", pytest.approx(0.6))
    house.materialize(
        "nightly_eval_report",
        partition="2026-03-05",
        run_config={"ops": {"nightly_eval_report": {"config": {"policy": "iter-02"}}}},
    )
    assert house.latest("nightly_eval_report", "2026-03-05").metadata["policy"].value == "iter-02"
