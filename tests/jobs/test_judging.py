"""Rollouts of tasks without an evaluator: judged by votes, told apart everywhere, learnt from where asked for."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flywheel.config import Config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError
from flywheel.jobs import rollouts, sft_set
from flywheel.store.opening import open_store
from flywheel.store.query import query
from tests.hosted_model import served
from tests.school import School
from tests.tiny import Notes

ASKED = ("rollout.tasks=6", "rollout.samples=1", "flywheel.demonstrations=false")


def filtered(config: Config, home: Path) -> dict[str, Any]:
    return dict(sft_set.run(config, {"iteration": 1, "out": str(home / "set"), "demonstrations": None}, Notes()))


def test_the_judge_stands_in_where_there_is_no_evaluator(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = load_tasks(school.tasks)
    half = [replace(task, evaluator={}) if n % 2 else task for n, task in enumerate(tasks)]
    monkeypatch.setattr(rollouts, "load_tasks", lambda path: half)
    args = {"policy": school.policy, "tasks": "", "partition": "iter-01", "iteration": 1, "seed": 0}
    said = iter(["success"] * 3 + ["failure"] * 3 + ["success", "success", "failure"] + ["success"] * 30)

    with served(lambda body: [{"content": f"Verdict: {next(said)}"} for _ in range(body["n"])]) as server:
        config = school.config(tmp_path, *ASKED, "rollout.tasks=16", "judge.enabled=true", "rollout.max_tokens=16")
        config = config.model_copy(update={"hosted": server.config.model_copy(update={"concurrency": 1})})
        result = rollouts.run(config, args, Notes())
        asked = len(server.bodies)
    assert asked == result["verdicts"] == 8
    assert (result["episodes"], result["judged"], result["env_errors"]) == (16, 8, 0)
    assert "judge" not in result["reward_terms"]
    store = open_store(config)
    statement = (
        "SELECT count(*) AS n, count(task_reward) AS rewarded, count(*) FILTER (success) AS solved FROM episodes"
    )
    told = query(store, f"{statement} WHERE reward_terms['judge'] IS NOT NULL").to_pylist()
    assert told == [{"n": 8, "rewarded": 0, "solved": 0}]
    taught = filtered(config, tmp_path)
    assert taught["by_judge"] == 7
    assert taught["trajectories"] == result["solved"] + 7
    quiet = config.model_copy(update={"judge": config.judge.model_copy(update={"enabled": False})})
    assert filtered(quiet, tmp_path)["trajectories"] == result["solved"] > 0


def test_success_must_be_measurable(school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [replace(task, evaluator={}) for task in load_tasks(school.tasks)]
    monkeypatch.setattr(rollouts, "load_tasks", lambda path: tasks)
    args = {"policy": asdict(school.tiny.policy), "tasks": "", "partition": "iter-01", "iteration": 1, "seed": 0}
    with pytest.raises(DataError, match="None of the tasks has an evaluator"):
        rollouts.run(school.config(tmp_path, *ASKED, "judge.enabled=true"), args, Notes())
