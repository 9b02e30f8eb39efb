"""Replay in the stage of policy gradient: filled by SQL, drawn by the rule, bit-exact after kill -9."""

import os
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.jobs import grpo, rollouts
from flywheel.jobs.demonstrations import build_demonstrations
from flywheel.jobs.policy_gradient.replaying import DEMONSTRATIONS, Replay
from flywheel.rollout.replay import Success
from flywheel.store.opening import open_store
from flywheel.testing import random_trajectory
from flywheel.trainers.credit import Credit
from flywheel.trainers.rl import PolicyGradient
from flywheel.trainers.rollout import Rollout
from flywheel.types import Task, Trajectory
from flywheel.workspace import Workspace
from tests.jobs.test_grpo import args_for, stored
from tests.killing import in_child
from tests.school import School
from tests.tiny import Notes, Tiny, some_tasks

PAIRS = ("rl.group=2", "rl.prompts=16", "rl.steps=2", "rl.shaping=0.0", "rollout.tasks=16", "rollout.samples=6")
"""Groups of two at all sixteen tasks fail often; six tries at each before find what can be replayed."""


def roll_out(school: School, config: Config) -> None:
    args = {"policy": school.policy, "tasks": str(school.tasks), "partition": "iter-01", "iteration": 1, "seed": 5}
    rollouts.run(config, args, Notes())


@dataclass
class Seen:
    """What every update was given."""

    updates: list[list[Rollout]] = field(default_factory=list)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    real, notes = PolicyGradient.update, Seen()

    def update(trainer: PolicyGradient, given: Sequence[Rollout], credits: Sequence[Credit]) -> dict[str, float]:
        notes.updates.append(list(given))
        return real(trainer, given, credits)

    monkeypatch.setattr(PolicyGradient, "update", update)
    return notes


@pytest.mark.parametrize("rule", ["cookbook", "arpo"])
def test_groups_that_fail_take_a_success_of_their_task_in(
    school: School, tmp_path: Path, seen: Seen, rule: str
) -> None:
    config, notes = school.config(tmp_path, *PAIRS, f"rl.replay={rule}"), Notes()
    roll_out(school, config)
    before = {t.id: t for t in open_store(config).trajectories("iter-01", success=True)}
    grpo.run(config, args_for(school, tmp_path), notes)
    own = {t.id: t for t in stored(config)}
    joined = 0
    for given in seen.updates:
        groups: dict[str, list[Rollout]] = defaultdict(list)
        for rollout in given:
            groups[rollout.sample.group_id].append(rollout)
        for name, rows in groups.items():
            replayed = [row for row in rows if row.replayed]
            played = [t for t in own.values() if t.group_id == name]
            assert len(rows) == (3 if replayed and rule == "cookbook" else 2)
            assert not (replayed and any(t.success for t in played))
            for row in replayed:
                origin = {**own, **before}[row.sample.trajectory_id]
                assert origin.success
                assert origin.task.id == played[0].task.id
                assert row.reward == 1.0
                assert row.sample.logprobs.min() < 0
                assert rows.index(row) == (0 if rule == "arpo" else 2)
            joined += len(replayed)
    assert joined == sum(point["replayed"] for point in notes.curve) > 0
    assert len(own) == 2 * 16 * 2
    unused = [t for t in own.values() if t.advantage is None]
    assert len(unused) == (joined if rule == "arpo" else 0)


def run_in_child(school: School, home: Path, kill_in_update: int | None = None) -> str | None:
    """The fingerprint of the finished policy; None when it was killed in that update."""
    config = school.config(home, *PAIRS, "rl.replay=cookbook", "rl.steps=3")

    def work() -> str:
        real = PolicyGradient.update

        def update(trainer: PolicyGradient, *given: Any) -> dict[str, float]:
            if trainer.updates == kill_in_update:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(trainer, *given)

        PolicyGradient.update = update  # type: ignore[method-assign]
        notes = Notes()
        result = grpo.run(config, args_for(school, home, out=str(home / "out")), notes)
        assert sum(point["replayed"] for point in notes.curve) > 0
        return str(result["policy"]["fingerprint"])

    return in_child(work)  # type: ignore[no-any-return]


def test_a_resumed_run_replays_what_it_would_have_replayed(school: School, tmp_path: Path) -> None:
    """With nothing from before, all that is replayed are successes of the run itself."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for home in (whole, parts):
        home.mkdir()
    expected = run_in_child(school, whole)
    assert run_in_child(school, parts, kill_in_update=1) is None
    assert run_in_child(school, parts, kill_in_update=2) is None
    assert run_in_child(school, parts) == expected


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return some_tasks(6)


def replay(config: Config, chat: Chat, tasks: Sequence[Task], iteration: int) -> Replay:
    return Replay(config, open_store(config), chat, tasks, partition="grpo-iter-02", iteration=iteration, seed=0)


def test_the_buffer_holds_the_newest_successes_of_training_tasks(
    school: School, tiny: Tiny, tasks: list[Task], tmp_path: Path
) -> None:
    config = school.config(tmp_path, "rl.replay=arpo", "rl.replay_size=3")
    store = open_store(config)

    def publish(name: str, partition: str, task: Task, reward: float | None = 1.0, **fields: Any) -> None:
        made = replace(random_trajectory(name, 1, (32, 32)), task=task, task_reward=reward)
        made = replace(made, **{"iteration": int(partition[-2:]), "action_space": tiny.chat.space.id, **fields})
        store.publish(made, partition=partition)

    for number in range(3):
        publish(f"old{number}", "iter-01", tasks[0])
        publish(f"new{number}", "iter-02", tasks[0])
    publish("later", "iter-03", tasks[0])
    publish("measured", "eval-iter-02", tasks[1])
    publish("failed", "iter-01", tasks[2], 0.0)
    publish("unjudged", "iter-01", tasks[2], None)
    publish("other words", "iter-01", tasks[3], action_space="pyautogui/1")
    publish("heldout", "iter-01", replace(tasks[4], split="heldout"))
    publish("stranger", "iter-01", replace(tasks[5], id="not-in-the-file"))
    publish("one", "iter-01", tasks[5])

    def held(iteration: int) -> list[str]:
        found = replay(config, tiny.chat, tasks, iteration).buffer.state_dict()["successes"]
        return sorted(success["trajectory_id"] for success in found)

    assert held(2) == ["new0", "new1", "new2", "one"]
    assert held(1) == ["old0", "old1", "old2", "one"]
    assert held(0) == []


def test_a_warm_start_begins_with_the_demonstrations(school: School, tiny: Tiny, tmp_path: Path, seen: Seen) -> None:
    """Every group that fails can take one in; it weighs what the policy believes in it."""
    config = school.config(tmp_path, *PAIRS, "rl.replay=cookbook", "rl.warm_start=true", "tasks.demonstrations=16")
    tasks = load_tasks(school.tasks)
    build_demonstrations(config, tasks, Workspace(config).demonstrations_dir)
    buffer = replay(config, tiny.chat, tasks, 0).buffer
    assert len(buffer) == 16
    assert all((found := buffer.draw(task.id, 0)) and found.source == DEMONSTRATIONS for task in tasks)
    grpo.run(config, args_for(school, tmp_path), Notes())
    joined = [rollout for given in seen.updates for rollout in given if rollout.replayed]
    failed = {t.group_id for t in stored(config)} - {t.group_id for t in stored(config) if t.success}
    assert {rollout.sample.group_id for rollout in joined} == failed
    assert any(not rollout.sample.logprobs.any() for rollout in joined)


def test_successes_of_this_run_join_the_buffer(school: School, tiny: Tiny, tasks: list[Task], tmp_path: Path) -> None:
    found = replay(school.config(tmp_path, "rl.replay=arpo"), tiny.chat, tasks, 0)
    played: list[Trajectory] = [
        replace(random_trajectory(name, 1, (32, 32)), task=tasks[0], task_reward=reward)
        for name, reward in (("won", 1.0), ("lost", 0.0), ("unjudged", None))
    ]
    found.learn(played)
    assert found.buffer.draw(tasks[0].id, 0) == Success(tasks[0].id, "grpo-iter-02", "won")
    assert len(found.buffer) == 1
