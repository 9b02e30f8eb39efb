"""Policy gradient as a stage: plays, updates, publishes with advantages; bit-exact after kill -9."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flywheel.config import Config
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.errors import ConfigError, DataError, InfrastructureError, PartitionBusyError
from flywheel.jobs import environments, grpo
from flywheel.modeling.policy import load_policy
from flywheel.processes import family, is_alive
from flywheel.store.opening import open_store
from flywheel.trainers.checkpoints import states_folder
from flywheel.trainers.model import fingerprint
from flywheel.trainers.rl import PolicyGradient
from flywheel.types import Observation, PolicyRef, Task, Trajectory
from tests.killing import CONTEXT, in_child
from tests.school import School
from tests.tiny import Notes
from tests.updates import args_for

EPISODES = 3 * 3 * 4
"""Updates times tasks times episodes of a task."""


def stored(config: Config) -> list[Trajectory]:
    return open_store(config).trajectories("grpo-iter-01")


@pytest.fixture(scope="module")
def done(school: School, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, Any], Notes]:
    home, notes = tmp_path_factory.mktemp("grpo"), Notes()
    config = school.config(home)
    return config, grpo.run(config, args_for(school, home), notes), notes


def test_it_leaves_a_policy_and_says_how_it_went(school: School, done: tuple[Config, dict[str, Any], Notes]) -> None:
    config, result, notes = done
    ref = PolicyRef(**result["policy"])
    assert (ref.version, ref.parent) == ("grpo-iter-01", "sft")
    model, _ = load_policy(config, ref)
    assert fingerprint(model.parameters()) == ref.fingerprint != school.policy["fingerprint"]
    assert (result["updates"], result["episodes"], result["algorithm"]) == (3, EPISODES, "gspo")
    assert len(notes.curve) == 3
    assert result["success_first"] == notes.curve[0]["success"]
    assert result["success_last"] == pytest.approx(np.mean([point["success"] for point in notes.curve]))
    assert result["tokens_per_second"] > 0
    assert notes.done[-1] == (3, 3, "updates")
    assert {"loss", "grad_norm", "informative_groups", "mean_abs_advantage", "ratio_mean"} <= notes.curve[0].keys()
    assert notes.curve[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


def test_rollouts_are_stored_with_their_advantages(done: tuple[Config, dict[str, Any], Notes]) -> None:
    config, _, notes = done
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in stored(config):
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    assert {len(group) for group in groups.values()} == {4}
    assert len(groups) == 9
    told = 0
    for group in groups.values():
        rewards = np.array([trajectory.shaped_reward for trajectory in group], float)
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6) if np.ptp(rewards) > 1e-8 else 0 * rewards
        assert [trajectory.advantage for trajectory in group] == pytest.approx(expected.tolist(), abs=1e-6)
        told += bool(np.ptp(rewards) > 1e-8)
    assert told == pytest.approx(3 * sum(point["informative_groups"] for point in notes.curve))
    assert told > 0
    assert {t.policy.version for t in stored(config)} == {f"grpo-iter-01@{number}" for number in range(3)}


def test_it_repeats_from_its_seed_on_two_workers(
    school: School, tmp_path: Path, done: tuple[Config, dict[str, Any], Notes]
) -> None:
    config = school.config(tmp_path, "rollout.workers=2")
    result = grpo.run(config, args_for(school, tmp_path), Notes())
    assert [t.id for t in stored(config)] == [t.id for t in stored(done[0])]
    assert result["success_first"] == done[1]["success_first"]


def run_in_child(school: School, home: Path, kill_in_update: int | None = None) -> str | None:
    """The fingerprint of the finished policy; None when it was killed during that update. Nobody is left behind."""
    folder, config = home / "pids", school.config(home)

    def work() -> str:
        real = PolicyGradient.update

        def update(trainer: PolicyGradient, *given: Any) -> dict[str, float]:
            if trainer.updates == kill_in_update:
                folder.write_text(" ".join(map(str, family(os.getpid()))))
                os.kill(os.getpid(), signal.SIGKILL)
            return real(trainer, *given)

        PolicyGradient.update = update  # type: ignore[method-assign]
        return str(grpo.run(config, args_for(school, home, out=str(home / "out")), Notes())["policy"]["fingerprint"])

    found = in_child(work)
    if folder.exists():
        deadline, left = time.monotonic() + 5, [int(pid) for pid in folder.read_text().split()]
        assert len(left) >= 2
        while any(is_alive(pid) for pid in left) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(is_alive(pid) for pid in left)
    return found  # type: ignore[no-any-return]


def test_killed_and_started_again_it_ends_with_the_very_same_weights(school: School, tmp_path: Path) -> None:
    """Killed once before the first state, and twice after one; what is stored is what one run would have stored."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for home in (whole, parts):
        home.mkdir()
    expected = run_in_child(school, whole)
    for update in (0, 1, 2):
        assert run_in_child(school, parts, kill_in_update=update) is None
    assert run_in_child(school, parts) == expected
    one, other = stored(school.config(whole)), stored(school.config(parts))
    assert [(t.id, t.advantage, t.task_reward) for t in one] == [(t.id, t.advantage, t.task_reward) for t in other]
    assert not (parts / "out.trainer").exists()


def test_a_finished_run_starts_afresh_when_it_is_run_again(
    school: School, tmp_path: Path, done: tuple[Config, dict[str, Any], Notes]
) -> None:
    """It trains, it does not find its own last state and do nothing; and its partition gets a new attempt."""
    config, first, _ = done
    notes = Notes()
    again = grpo.run(config, args_for(school, config.home_path), notes)
    assert len(notes.curve) == 3
    assert again["policy"]["fingerprint"] == first["policy"]["fingerprint"]
    assert (first["attempt"], again["attempt"]) == (1, 2)
    assert len(stored(config)) == EPISODES


class Shaky(SimulatedEnv):
    """Loses every third episode, or all of them."""

    every = 3
    resets = 0

    async def reset(self, task: Task) -> Observation:
        Shaky.resets += 1
        if Shaky.resets % Shaky.every == 0:
            raise InfrastructureError("The desktop does not answer.")
        return await super().reset(task)


def test_episodes_that_were_lost_never_enter_training(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "SimulatedEnv", Shaky)
    seen: list[str] = []
    real = PolicyGradient.update

    def update(trainer: PolicyGradient, rollouts: Any, credits: Any) -> dict[str, float]:
        seen.extend(rollout.sample.trajectory_id for rollout in rollouts)
        return real(trainer, rollouts, credits)

    monkeypatch.setattr(PolicyGradient, "update", update)
    config, notes = school.config(tmp_path, "rl.steps=1"), Notes()
    result = grpo.run(config, args_for(school, tmp_path), notes)
    lost = {t.id: t for t in stored(config) if t.failure == "infrastructure"}
    assert result["episodes"] == 12
    assert len(lost) == notes.curve[0]["lost"] == 4
    assert len(seen) == 8
    assert not lost.keys() & set(seen)
    assert all(t.advantage is None and t.task_reward is None for t in lost.values())


def test_an_update_without_a_judged_episode_is_one_sentence(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "SimulatedEnv", Shaky)
    monkeypatch.setattr(Shaky, "every", 1)
    config = school.config(tmp_path)
    with pytest.raises(InfrastructureError, match=r"None of the 12 episodes of update 0.*does not answer") as caught:
        grpo.run(config, args_for(school, tmp_path), Notes())
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(Shaky, "every", 10**9)
    assert grpo.run(config, args_for(school, tmp_path), Notes())["updates"] == 3


def test_dapo_plays_more_until_enough_groups_differ(school: School, tmp_path: Path) -> None:
    """Groups of two often agree: what is trained on are groups that do not, and all that was played is stored."""
    settings = ("rl.algorithm=dapo", "rl.group=2", "rl.steps=2", "rl.shaping=0.0")
    config, notes = school.config(tmp_path, *settings), Notes()
    result = grpo.run(config, args_for(school, tmp_path), notes)
    assert result["episodes"] > 2 * 3 * 2
    assert [point["informative_groups"] for point in notes.curve] == [1.0, 1.0]
    assert result["episodes"] == len({t.id for t in stored(config)})


def test_bad_input_is_one_sentence(school: School, tmp_path: Path) -> None:
    args = args_for(school, tmp_path)
    with pytest.raises(DataError, match=r"families mneu \(rl.families\)"):
        grpo.run(school.config(tmp_path, "rl.families=[mneu]"), args, Notes())
    with pytest.raises(ConfigError, match="did you mean 'gspo'"):
        grpo.run(school.config(tmp_path, "rl.algorithm=gsop"), args, Notes())


def test_a_second_process_on_the_same_partition_is_refused(school: School, tmp_path: Path) -> None:
    config = school.config(tmp_path)
    store = open_store(config)
    store.begin("grpo-iter-01")
    ours, theirs = CONTEXT.Pipe()

    def second() -> None:
        try:
            grpo.run(config, args_for(school, tmp_path), Notes())
        except PartitionBusyError as error:
            theirs.send(str(error))

    process = CONTEXT.Process(target=second)
    process.start()
    process.join()
    assert ours.poll()
    assert "'grpo-iter-01' is held by process" in ours.recv()
    store.release("grpo-iter-01")


def test_states_belong_to_settings_that_decide_and_to_no_others(school: School, tmp_path: Path) -> None:
    """More workers or more updates go on; another learning rate or another task file begins anew."""

    def folder(*settings: str, **changes: Any) -> Path:
        given = args_for(school, tmp_path, **changes)
        return states_folder(tmp_path / "grpo", *grpo._decides(school.config(tmp_path, *settings), given))

    assert folder() == folder("rollout.workers=7", "rl.steps=9", "rl.save_every=5", "model.threads=2")
    others = [folder(), folder("rl.lr=1e-9"), folder("env.max_turns=9"), folder(seed=4)]
    assert len(set(others)) == 4
