"""Evaluation as a stage: a report that can be read back, lost episodes run again and never scored 0."""

import json
from pathlib import Path
from typing import Any

import pytest

from flywheel.datasets.task_files import save_tasks
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError, InfrastructureError, PolicyError
from flywheel.evaluation.report import from_json
from flywheel.evaluation.statistics import wilson
from flywheel.jobs import environments, evaluate
from flywheel.store.opening import open_store
from flywheel.types import Observation, PolicyRef, Task
from tests.school import School
from tests.tiny import Notes


def args_for(school: School, home: Path, **changes: Any) -> dict[str, Any]:
    given = {"policy": school.policy, "tasks": str(school.tasks), "split": "heldout", "episodes": 10, "seed": 5}
    return {**given, "partition": "eval-sft", "report": str(home / "reports" / "sft.json"), **changes}


def test_the_report_is_written_and_agrees_with_the_store(school: School, tmp_path: Path) -> None:
    config, notes = school.config(tmp_path), Notes()
    result = evaluate.run(config, args_for(school, tmp_path), notes)
    assert json.loads((tmp_path / "reports" / "sft.json").read_text()) == result
    report = from_json(result)
    assert report.policy == PolicyRef(**school.policy)
    assert (report.split, report.seed, report.episodes, report.env_errors) == ("heldout", 5, 10, 0)
    stored = {t.id: t for t in open_store(config).trajectories("eval-sft")}
    assert report.solved == sum(t.success for t in stored.values())
    interval = wilson(report.solved, 10)
    assert (report.ci_low, report.ci_high) == (interval.low, interval.high)
    tasks = load_tasks(school.tasks)[:10]
    assert report.per_task.keys() == {task.id for task in tasks}
    assert {t.sampling.temperature for t in stored.values()} == {0.0}
    assert result["partition"] == "eval-sft"
    assert stored[result["success_id"]].success
    assert notes.done[-1] == (10, 10, "episodes")
    assert not list((tmp_path / "reports").glob("*.tmp"))


def test_the_same_seed_gives_the_same_report_on_any_number_of_workers(school: School, tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        config = school.config(tmp_path / str(workers), f"rollout.workers={workers}")
        result = evaluate.run(config, args_for(school, tmp_path), Notes())
        found.append({name: result[name] for name in ("solved", "per_task", "by_family", "success_id", "failure_id")})
    assert found[0] == found[1]


def test_more_episodes_than_tasks_go_round(school: School, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    save_tasks(load_tasks(school.tasks)[:3], few)
    result = evaluate.run(
        school.config(tmp_path, "eval.temperature=1.0"),
        args_for(school, tmp_path, tasks=str(few), episodes=8),
        Notes(),
    )
    assert result["episodes"] == 8
    assert sorted(len(outcomes) for outcomes in result["per_task"].values()) == [2, 3, 3]


class Unreliable(SimulatedEnv):
    """Fails the first `faults` resets of its process; and the first task of all, whenever it comes."""

    faults = 3
    hopeless = ""

    async def reset(self, task: Task) -> Observation:
        if Unreliable.faults or task.id == Unreliable.hopeless:
            Unreliable.faults = max(0, Unreliable.faults - 1)
            raise InfrastructureError("The desktop does not answer.")
        return await super().reset(task)


@pytest.mark.parametrize("hopeless", [False, True])
def test_lost_episodes_are_run_again_and_then_counted_apart(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hopeless: bool
) -> None:
    monkeypatch.setattr(environments, "SimulatedEnv", Unreliable)
    task = load_tasks(school.tasks)[4]
    monkeypatch.setattr(Unreliable, "hopeless", task.id if hopeless else "")
    config, notes = school.config(tmp_path), Notes()
    result = evaluate.run(config, args_for(school, tmp_path), notes)
    assert result["env_errors"] == int(hopeless)
    assert result["episodes"] == 10 - int(hopeless)
    assert (task.id in result["per_task"]) is not hopeless
    assert "lost" in notes.lines[0]
    stored = open_store(config).trajectories("eval-sft")
    lost = [t for t in stored if t.failure == "infrastructure"]
    # Three faults and, where one task is hopeless, its first try and both of its retries (one may be among the three).
    assert len(stored) - len(lost) == 10 - int(hopeless)
    assert len(lost) in ((5, 6) if hopeless else (3,))


def test_nothing_to_evaluate_is_one_sentence(school: School, tmp_path: Path) -> None:
    config = school.config(tmp_path)
    save_tasks([], tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="10 episodes of 0 tasks"):
        evaluate.run(config, args_for(school, tmp_path, tasks=str(tmp_path / "none.jsonl")), Notes())
    with pytest.raises(DataError, match="0 episodes of 16 tasks"):
        evaluate.run(config, args_for(school, tmp_path, episodes=0), Notes())
    with pytest.raises(PolicyError, match="cannot be loaded"):
        evaluate.run(config, args_for(school, tmp_path, policy={"version": "x", "uri": str(tmp_path / "x")}), Notes())
    assert not (tmp_path / "reports").exists()
