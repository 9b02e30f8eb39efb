"""The two stages that make training sets, and the one that looks whether a checkpoint loads."""

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from flywheel.chat import make_words
from flywheel.config import Config
from flywheel.datasets.sets import load_rows
from flywheel.datasets.task_files import save_tasks
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import CheckpointError, DataError, StoreError
from flywheel.jobs import demonstrations, sft_set, verify
from flywheel.rollout.groups import plan
from flywheel.store.opening import open_store
from flywheel.testing import random_trajectory
from flywheel.types import Observation, PolicyRef, Task, Trajectory
from flywheel.workspace import iteration_name
from tests.rollout.test_solutions import END, SEND
from tests.tiny import SCREEN, Notes, Tiny, small_config, write_tasks


def shown(home: Path, count: int = 5) -> tuple[dict[str, Any], Path]:
    config = small_config(home, f"tasks.demonstrations={count}")
    args = {"tasks": str(write_tasks(home, 8)), "out": str(home / "shown")}
    return demonstrations.run(config, args, Notes()), home / "shown"


def test_the_oracle_shows_the_first_tasks(tmp_path: Path) -> None:
    result, folder = shown(tmp_path)
    rows = list(load_rows(folder))
    assert result["trajectories"] == len(rows) == 5
    assert result["turns"] == sum(len(row["images"]) for row in rows)
    assert sum(result["by_family"].values()) == 5
    assert [row["task_id"] for row in rows] == [task.id for task in load_tasks(tmp_path / "train.jsonl")[:5]]
    for row in rows:
        assert (row["source"], row["policy"], row["reward"]) == ("demonstration", "oracle", 1.0)
        assert all(row["turn_mask"])
        assert not any(row["completion_ids"])
    assert len(datasets.load_from_disk(folder)[0]["images"]) == len(rows[0]["images"])


def test_demonstrations_repeat(tmp_path: Path) -> None:
    first, again = (list(load_rows(shown(tmp_path / name)[1])) for name in ("one", "two"))
    assert first == again


class UnevenEnv(SimulatedEnv):
    """Slow at one task; `judged` is what all of them were asked about, in order."""

    def __init__(self, slow: str, judged: list[str]) -> None:
        super().__init__(SCREEN)
        self._slow, self._judged, self._task = slow, judged, ""

    async def reset(self, task: Task) -> Observation:
        self._task = task.id
        await asyncio.sleep(0.3 if task.id == self._slow else 0)
        return await super().reset(task)

    async def evaluate(self) -> float:
        self._judged.append(self._task)
        return await super().evaluate()


def test_desktops_that_finish_out_of_order_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = load_tasks(write_tasks(tmp_path, 4))
    judged: list[str] = []
    monkeypatch.setattr(demonstrations, "make_env", lambda _: UnevenEnv(tasks[0].id, judged))
    config = small_config(tmp_path, "env.backend=remote", "rollout.concurrency=2")
    demonstrations.build_demonstrations(config, tasks, tmp_path / "shown")
    assert judged[-1] == tasks[0].id
    assert [row["task_id"] for row in load_rows(tmp_path / "shown")] == [task.id for task in tasks]


def test_only_solutions_that_look_something_up_are_shown_the_tree(tmp_path: Path) -> None:
    plain, looking = (
        replace(task, raw={**task.raw, "solution": steps})
        for task, steps in zip(load_tasks(write_tasks(tmp_path, 2)), ([END], [SEND, END]), strict=True)
    )
    config = small_config(tmp_path, "tasks.source=offline")
    specs = plan(config, [looking, plain], partition="p", samples=1, temperature=0.0, max_turns=32)
    played: list[Trajectory] = []
    demonstrations.play_scripts(config, specs, make_words(config).space, played.append)
    trees = {t.task.id: {turn.observation.accessibility_tree is None for turn in t.turns} for t in played}
    assert trees == {plain.id: {True}, looking.id: {False}}


def test_a_task_that_the_oracle_cannot_solve_is_one_sentence(tmp_path: Path) -> None:
    """Its checker asks for something else than its instruction."""
    tasks = load_tasks(write_tasks(tmp_path, 3))
    hopeless = replace(tasks[1], evaluator=tasks[2].evaluator)
    save_tasks([tasks[0], replace(hopeless, raw={})], tmp_path / "train.jsonl")
    args = {"tasks": str(tmp_path / "train.jsonl"), "out": str(tmp_path / "shown")}
    with pytest.raises(DataError, match="The script failed at 1 of 2 tasks") as caught:
        demonstrations.run(small_config(tmp_path), args, Notes())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "shown").exists()


def played(config: Config, iterations: int, *, reward: float | None = None) -> None:
    """Twelve rollouts an iteration, published and sealed."""
    store = open_store(config)
    for iteration in range(1, iterations + 1):
        name, fields = iteration_name(iteration), {} if reward is None else {"task_reward": reward}
        attempt = store.begin(name)
        trajectories = [random_trajectory(f"{name}-{i}", iteration=iteration, **fields) for i in range(12)]
        store.publish_many(trajectories, partition=name, attempt=attempt)
        store.seal(name, attempt, 12)


def args_for(home: Path, iteration: int, mixed_in: Path | None = None) -> dict[str, Any]:
    given = str(mixed_in) if mixed_in else None
    return {"iteration": iteration, "out": str(home / "set"), "demonstrations": given, "seed": 0}


@pytest.mark.parametrize(("pool", "iterations"), [("all", ["iter-01", "iter-02"]), ("latest", ["iter-02"])])
def test_successes_are_kept_with_their_ids(tmp_path: Path, pool: str, iterations: list[str]) -> None:
    config = small_config(tmp_path, f"flywheel.pool={pool}", "flywheel.per_task=0")
    played(config, 2)
    result = sft_set.run(config, args_for(tmp_path, 2), Notes())
    store = open_store(config)
    wanted = {t.id: t for name in iterations for t in store.trajectories(name) if t.success}
    rows = {row["trajectory_id"]: row for row in load_rows(tmp_path / "set")}
    assert rows.keys() == wanted.keys()
    assert result["trajectories"] == result["successes"] == len(wanted) > 0
    assert list(result["by_iteration"]) == iterations
    for name, row in rows.items():
        assert [tuple(ids) for ids in row["completion_ids"]] == [turn.completion_ids for turn in wanted[name].turns]
    assert result["tokens"] == sum(len(ids) for row in rows.values() for ids in row["completion_ids"])


def test_demonstrations_are_mixed_in_and_counted_apart(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    played(config, 1)
    result = sft_set.run(config, args_for(tmp_path, 1, shown(tmp_path)[1]), Notes())
    sources = [row["source"] for row in load_rows(tmp_path / "set")]
    assert sources.count("demonstration") == result["from_demonstrations"] == 5
    assert sources.count("rollout") == result["trajectories"] - 5


def test_few_of_a_task_are_kept(tmp_path: Path) -> None:
    config = small_config(tmp_path, "flywheel.per_task=1")
    played(config, 2)
    sft_set.run(config, args_for(tmp_path, 2), Notes())
    tasks = [row["task_id"] for row in load_rows(tmp_path / "set")]
    assert len(tasks) == len(set(tasks)) > 1


def test_an_iteration_without_a_success_is_one_sentence(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    played(config, 1, reward=0.0)
    with pytest.raises(DataError, match=r"would be empty, because nothing succeeded") as caught:
        sft_set.run(config, args_for(tmp_path, 1), Notes())
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match="iter-02"):
        sft_set.run(config, args_for(tmp_path, 2), Notes())


def test_where_the_student_solves_nothing_the_teacher_goes_on(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    played(config, 1, reward=0.0)
    result = sft_set.run(config, args_for(tmp_path, 1, shown(tmp_path)[1]), Notes())
    assert (result["trajectories"], result["successes"], result["by_family"]) == (5, 0, {})
    assert [row["source"] for row in load_rows(tmp_path / "set")] == ["demonstration"] * 5


def test_a_checkpoint_is_verified_bit_by_bit(tiny: Tiny) -> None:
    result = verify.run(tiny.config, {"policy": asdict(tiny.policy)}, Notes())
    assert result["parameters"] == sum(parameter.numel() for parameter in tiny.model.parameters())
    other = PolicyRef("other", tiny.policy.uri, None, "0" * 16)
    with pytest.raises(CheckpointError, match="not those that were saved as other"):
        verify.run(tiny.config, {"policy": asdict(other)}, Notes())
