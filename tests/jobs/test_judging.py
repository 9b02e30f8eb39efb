"""Rollouts of tasks without an evaluator: judged by votes, told apart everywhere, learnt from where asked for."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flywheel.chat import Chat
from flywheel.config import Config, load_config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError
from flywheel.jobs import rollouts, sft_set
from flywheel.jobs.judging import verdicts
from flywheel.rollout.judge import INSTRUCTIONS, Question, Verdict, question
from flywheel.store.opening import open_store
from flywheel.store.query import query
from flywheel.testing import random_trajectory
from flywheel.trainers.checkpoints import save_policy
from flywheel.trainers.model import fingerprint
from flywheel.trainers.sft import train_sft
from flywheel.types import PolicyRef, TrainingSample
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


def test_the_judge_may_be_a_policy_in_this_process(school: School, tmp_path: Path) -> None:
    """One that was taught to say success of every screen votes so each time; what is cut short is no vote."""
    trajectories = [random_trajectory(f"e{number}", 2, (160, 128)) for number in range(3)]
    judge, tiny = school.tiny.fresh(), school.tiny
    lessons = [lesson(tiny.chat, question(one, 2), "Verdict: success<|im_end|>") for one in trajectories]
    sft = load_config("embedded", ["sft.lr=3e-3", "sft.batch=3"]).sft
    train_sft(judge, lessons, sft, steps=30, seed=0, states=tmp_path / "states", report=Notes())
    ref = PolicyRef("judge", str(tmp_path / "judge"), None, fingerprint(judge.model.parameters()))
    save_policy(judge.model, tiny.chat.processor, ref, tmp_path / "judge")
    asked = (f"judge.policy={tmp_path / 'judge'}", "judge.screenshots=2", "judge.temperature=0.2")
    config = school.config(tmp_path, *asked)
    assert verdicts(config, trajectories) == [Verdict(3, 0)] * 3
    assert verdicts(school.config(tmp_path, *asked, "judge.max_tokens=1"), trajectories) == [Verdict(0, 0)] * 3


def lesson(chat: Chat, asked: Question, answer: str) -> TrainingSample:
    prompt = chat.question(INSTRUCTIONS, asked.text, asked.shots)
    grids = [grid for _, grid in prompt.pictures]
    laid = chat.lay([prompt.ids], [chat.tokenise(answer)], grids, [len(grids)])
    return TrainingSample(
        trajectory_id=asked.id,
        group_id="",
        input_ids=laid.ids_N,
        train_mask=laid.answered_N,
        logprobs=np.zeros(len(laid.ids_N), np.float32),
        weights=laid.answered_N.astype(np.float32),
        images=asked.shots,
        image_grids=tuple(grids),
    )
