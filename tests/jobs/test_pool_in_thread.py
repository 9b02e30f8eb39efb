"""How a policy on a GPU is played, shown on the CPU: one worker in a thread of this process."""

import threading
from pathlib import Path

import pytest

from flywheel.jobs.pool import RolloutPool
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.packing import pack
from tests.jobs.test_pool import made, said, specs_of
from tests.school import School


@pytest.fixture
def threaded(school: School, tmp_path: Path) -> RolloutPool:
    pool = made(school, tmp_path)
    pool._engine.forks, pool._count = False, 1
    return pool


def test_a_thread_plays_what_forks_play_and_ends_with_the_pool(
    school: School, threaded: RolloutPool, tmp_path: Path
) -> None:
    specs = specs_of(school)
    with made(school, tmp_path, "rollout.workers=2") as pool:
        forked = pool.play(specs)
    with threaded as pool:
        played = pool.play(specs)
        ((thread, _),) = pool._workers
        assert isinstance(thread, threading.Thread)
    assert said(played) == said(forked)
    assert not thread.is_alive()


def test_trainer_and_engine_take_turns_with_one_model(school: School, threaded: RolloutPool) -> None:
    specs = specs_of(school, 2)
    with threaded as pool:
        before = pool.play(specs)
        trainer = PolicyModel(pool.model, pool.chat)
        row = pack([pool.chat.sample(trajectory) for trajectory in before], image_id=pool.chat.image_id)
        first = trainer.logprobs(row)
        assert said(pool.play(specs)) == said(before)
        assert trainer.logprobs(row).equal(first)


def test_a_bug_in_the_thread_stops_the_run(threaded: RolloutPool, school: School) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("of ours")

    threaded._finish = broken  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError, match="of ours"), threaded as pool:
        pool.play(specs_of(school, 1))
