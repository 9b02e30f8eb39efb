"""Rollout workers: the same episodes whatever their number, and none that outlives anybody."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.errors import InfrastructureError, StoreFullError
from flywheel.jobs import environments
from flywheel.jobs.pool import RolloutPool
from flywheel.jobs.publishing import Publication
from flywheel.processes import children, is_alive
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import plan
from flywheel.store.opening import open_store
from flywheel.types import Observation, PolicyRef, Task, Trajectory
from tests.killing import CONTEXT
from tests.school import School
from tests.tiny import some_tasks


def same(trajectory: Trajectory) -> Trajectory:
    return trajectory


def made(school: School, home: Path, *settings: str, finish: Callable[[Trajectory], Trajectory] = same) -> RolloutPool:
    return RolloutPool(school.config(home, *settings), PolicyRef(**school.policy), finish=finish, digest=same)


def specs_of(school: School, count: int = 8, **changes: Any) -> list[EpisodeSpec]:
    tasks = some_tasks(count, families=("click", "check"))
    plan_for: dict[str, Any] = {"partition": "p", "samples": 2, "temperature": 1.0, "max_turns": 3, **changes}
    return plan(school.config(Path("unused")), tasks, **plan_for)


def said(played: list[Trajectory]) -> list[tuple[Any, ...]]:
    return [(t.id, t.task_reward, tuple(turn.completion_ids for turn in t.turns)) for t in played]


def test_one_worker_and_two_play_the_same_episodes(school: School, tmp_path: Path) -> None:
    specs = specs_of(school)
    with made(school, tmp_path, "rollout.workers=1") as pool:
        alone, again = pool.play(specs), pool.play(specs)
    with made(school, tmp_path, "rollout.workers=2") as pool:
        shared = pool.play(specs)
    assert [t.id for t in alone] == [spec.id for spec in specs]
    assert said(alone) == said(again) == said(shared)
    assert {t.worker for t in alone} == {"worker-0"}
    assert {t.worker for t in shared} == {"worker-0", "worker-1"}
    assert 0 < sum(t.success for t in alone) < len(alone)


def test_an_episode_repeats_alone(school: School, tmp_path: Path) -> None:
    specs = specs_of(school)
    with made(school, tmp_path) as pool:
        assert said(pool.play(specs))[5:6] == said(pool.play(specs[5:6]))


def test_what_a_trainer_writes_is_what_is_sampled_from_next(school: School, tmp_path: Path) -> None:
    specs = specs_of(school, temperature=0.0)
    with made(school, tmp_path, "rollout.workers=2") as pool:
        before = pool.play(specs)
        for parameter in pool.model.model.language_model.parameters():
            parameter.data.mul_(0.5)
        after = pool.play(specs, policy=PolicyRef("sft@1", ""))
    assert said(before) != said(after)
    assert {t.policy.version for t in before} == {"sft"}
    assert {t.policy.version for t in after} == {"sft@1"}


def test_episodes_are_published_as_they_were_finished(school: School, tmp_path: Path) -> None:
    specs = specs_of(school)
    counted: list[int] = []
    with made(school, tmp_path, "rollout.workers=2", finish=_marked) as pool:
        played = pool.play(specs, publication=Publication("p", 1), on_done=counted.append)
    assert counted == list(range(1, len(specs) + 1))
    found = open_store(school.config(tmp_path)).trajectories("p")
    assert sorted(t.id for t in found) == sorted(t.id for t in played)
    assert {t.shaped_reward for t in found} == {0.125}


def _marked(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, shaped_reward=0.125)


def test_leaving_ends_the_workers_at_once(school: School, tmp_path: Path) -> None:
    with made(school, tmp_path, "rollout.workers=2") as pool:
        pool.play(specs_of(school, 2))
        pids = [process.pid for process, _ in pool._workers]
        left = time.monotonic()
    assert time.monotonic() - left < 10
    assert not any(is_alive(pid) for pid in pids)


class SlowEnv(SimulatedEnv):
    """Blocks its whole worker, as a machine that swaps does."""

    async def reset(self, task: Task) -> Observation:
        time.sleep(30)  # noqa: ASYNC251
        return await super().reset(task)


@pytest.mark.parametrize("when", ["while it plays", "before it plays"])
def test_a_killed_worker_is_one_sentence_and_no_wait(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(environments, "SimulatedEnv", SlowEnv)
    pids: list[int] = []

    def play() -> None:
        with made(school, tmp_path, "rollout.workers=2") as pool:
            workers = [process for process, _ in pool._workers]
            pids.extend(process.pid for process in workers)
            if when == "before it plays":
                workers[0].kill()
                workers[0].join()
            else:
                Timer(0.3, workers[1].kill).start()
            pool.play(specs_of(school, 2))

    started = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"worker was killed.*out-of-memory") as caught:
        play()
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 10
    assert not any(is_alive(pid) for pid in pids)


def test_no_worker_outlives_a_killed_parent(school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an idle one nor one in the middle of an episode."""
    monkeypatch.setattr(environments, "SimulatedEnv", SlowEnv)
    for playing in (False, True):
        ours, theirs = CONTEXT.Pipe()

        def parent(playing: bool = playing, theirs: Any = theirs) -> None:
            with made(school, tmp_path, "rollout.workers=2") as pool:
                theirs.send([process.pid for process, _ in pool._workers])
                if playing:
                    pool.play(specs_of(school, 2))
                time.sleep(60)

        process = CONTEXT.Process(target=parent)
        process.start()
        pids = ours.recv()
        time.sleep(0.2)
        assert children(process.pid) >= set(pids)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        deadline = time.monotonic() + 5
        while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(is_alive(pid) for pid in pids)


def _bug(trajectory: Trajectory) -> Trajectory:
    raise ZeroDivisionError("a bug in the scoring")


def _full(trajectory: Trajectory) -> Trajectory:
    raise StoreFullError("No space is left for the store.")


def test_a_bug_in_a_worker_stops_the_run_with_its_traceback(school: School, tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError, match="a bug in the scoring") as caught,
        made(school, tmp_path, "rollout.workers=2", finish=_bug) as pool,
    ):
        pool.play(specs_of(school, 2))
    assert any("_bug" in note for note in caught.value.__notes__)


def test_a_failure_of_the_store_keeps_its_class_and_sentence(school: School, tmp_path: Path) -> None:
    with (
        pytest.raises(StoreFullError, match="No space is left for the store"),
        made(school, tmp_path, "rollout.workers=2", finish=_full) as pool,
    ):
        pool.play(specs_of(school, 2))
