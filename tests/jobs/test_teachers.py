"""Teachers: called where the student solves nothing, under their own name, and learnt from."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flywheel.config import Config
from flywheel.datasets.sets import load_rows
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import DataError, PolicyError
from flywheel.jobs import rollouts, sft_set
from flywheel.jobs.demonstrations import play_scripts
from flywheel.jobs.policy_gradient.practice import failures_of
from flywheel.jobs.policy_gradient.replaying import Replay
from flywheel.rollout.groups import plan
from flywheel.store.opening import open_store
from flywheel.store.query import query
from flywheel.trainers.documents import sample_of
from flywheel.types import Trajectory
from tests.hosted_model import served
from tests.school import School
from tests.tiny import Notes, Tiny

FEW = (
    "rollout.tasks=4",
    "rollout.samples=1",
    "env.max_turns=2",
    "rollout.max_tokens=4",
    "flywheel.demonstrations=false",
)


def rolled_out(tiny: Tiny, school: School, config: Config) -> dict[str, Any]:
    """An untrained student: it babbles, and solves nothing."""
    args = {
        "policy": asdict(tiny.policy),
        "tasks": str(school.tasks),
        "partition": "iter-01",
        "iteration": 1,
        "seed": 0,
    }
    return dict(rollouts.run(config, args, Notes()))


def filtered(config: Config, home: Path) -> dict[str, Any]:
    return dict(sft_set.run(config, {"iteration": 1, "out": str(home / "set"), "demonstrations": None}, Notes()))


def test_a_script_is_called_where_the_student_solves_nothing(school: School, tiny: Tiny, tmp_path: Path) -> None:
    config = school.config(tmp_path, *FEW, "flywheel.bootstrap=script", "env.max_turns=4")
    result = rolled_out(tiny, school, config)
    assert (result["solved"], result["episodes"]) == (0, 4)
    assert result["teacher"] == {"policy": "oracle", "partition": "teacher-iter-01", "episodes": 4, "solved": 4}
    store = open_store(config)
    rows = query(store, "SELECT partition, policy, count(*), count(*) FILTER (success) FROM episodes GROUP BY ALL")
    assert sorted(map(tuple, (row.values() for row in rows.to_pylist()))) == [
        ("iter-01", "untrained", 4, 0),
        ("teacher-iter-01", "oracle", 4, 4),
    ]
    assert set(failures_of(config, store, 1).values()) == {1.0}
    found = filtered(config, tmp_path)
    assert (found["trajectories"], found["by_policy"]) == (4, {"oracle": 4})
    documents = [sample_of(row, tiny.chat) for row in load_rows(tmp_path / "set")]
    assert all(document.train_mask.any() for document in documents)


def test_without_a_teacher_nothing_changes(school: School, tiny: Tiny, tmp_path: Path) -> None:
    config = school.config(tmp_path, *FEW)
    assert rolled_out(tiny, school, config)["teacher"] is None
    with pytest.raises(DataError, match="nothing succeeded that passed its filter"):
        filtered(config, tmp_path)


def test_a_student_that_solves_enough_has_no_teacher(school: School, tmp_path: Path) -> None:
    """A checkpoint teaches until then; one that played for an earlier student is left out of the set."""
    settings = ("rollout.tasks=16", "rollout.samples=1", "flywheel.demonstrations=false")
    config = school.config(
        tmp_path, *settings, f"flywheel.bootstrap={school.home / 'sft'}", "flywheel.bootstrap_below=99"
    )
    args = {"policy": school.policy, "tasks": str(school.tasks), "partition": "iter-01", "iteration": 1, "seed": 0}
    result = rollouts.run(config, args, Notes())
    assert result["teacher"]["policy"] == "sft"
    assert 0 < result["teacher"]["solved"] < 16
    assert 0 < result["solved"] < 16
    both = filtered(config, tmp_path)["successes"]
    assert both == result["solved"] + result["teacher"]["solved"]
    enough = config.model_copy(update={"flywheel": config.flywheel.model_copy(update={"bootstrap_below": 1})})
    assert filtered(enough, tmp_path)["successes"] == result["solved"]
    nobody = config.model_copy(update={"flywheel": config.flywheel.model_copy(update={"bootstrap": "nobody"})})
    with pytest.raises(PolicyError, match="no policy 'nobody'"):
        rollouts.run(nobody, args, Notes())


def test_a_hosted_model_teaches(school: School, tiny: Tiny, tmp_path: Path) -> None:
    """The server answers with what the oracle says at that turn of that task; replay and training can read it."""
    config = school.config(tmp_path, *FEW, "flywheel.bootstrap=hosted", "env.max_turns=4", "rl.replay=cookbook")
    tasks = load_tasks(school.tasks)
    shown: list[Trajectory] = []
    specs = plan(config, tasks, partition="p", samples=1, temperature=0.0, max_turns=8)
    play_scripts(config, specs, tiny.chat.space, shown.append)
    known = {trajectory.task.instruction: [turn.text for turn in trajectory.turns] for trajectory in shown}

    def oracle(body: dict[str, Any]) -> list[dict[str, str]]:
        turn = sum(message["role"] == "user" for message in body["messages"]) - 1
        words = body["messages"][1]["content"][1]["text"]
        texts = next(texts for instruction, texts in known.items() if instruction in words)
        return [{"content": texts[turn]}]

    with served(oracle) as server:
        config = config.model_copy(update={"hosted": server.config})
        result = rolled_out(tiny, school, config)
    assert result["teacher"]["policy"] == "big-one"
    assert result["teacher"]["solved"] > 0
    store = open_store(config)
    replay = Replay(config, store, tiny.chat, tasks, partition="grpo-iter-01", iteration=1, seed=0)
    assert len(replay.buffer) == result["teacher"]["solved"]
    (one, *_) = store.trajectories("teacher-iter-01", success=True)
    document = replay._document(one)
    said = tiny.chat.decode(document.input_ids[document.train_mask].tolist())
    assert one.turns[0].text in said
    assert not document.logprobs.any()
