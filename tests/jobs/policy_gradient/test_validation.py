"""Evaluation on the way: on tasks that are never practised; the best policy is published where that is asked for."""

import os
import signal
from pathlib import Path

import pytest

from flywheel.config import Config, load_config
from flywheel.envs.simulated.tasks import load_tasks
from flywheel.errors import ConfigError
from flywheel.jobs.policy_gradient.practice import Practice
from flywheel.jobs.policy_gradient.validation import Validated, set_aside
from flywheel.store.opening import open_store
from flywheel.trainers.model import fingerprint
from flywheel.trainers.rl import PolicyGradient
from tests.killing import in_child
from tests.school import School
from tests.tiny import some_tasks
from tests.updates import VERSION, before_update, play, scale_head

EVERY_TWO = ("rl.eval_every=2", "rl.eval_tasks=6", "rl.guards.enabled=false")
BEST = (*EVERY_TWO, "rl.keep=best")


def settings(*given: str) -> Config:
    return load_config("embedded", given)


def test_tasks_are_set_aside_by_the_seed_of_the_experiment_and_never_practised() -> None:
    tasks = some_tasks(16)
    config = settings("rl.eval_every=4", "rl.eval_tasks=5", "rl.families=[]", "rl.grow=1.0")
    practised, apart = set_aside(config, tasks)
    assert len(apart) == 5
    assert sorted(task.id for task in practised + apart) == sorted(task.id for task in tasks)
    assert set_aside(config, tasks) == (practised, apart)
    assert set_aside(settings("rl.eval_every=4", "rl.eval_tasks=5", "seed=1"), tasks)[1] != apart
    assert set_aside(settings("rl.eval_tasks=5"), tasks) == (tasks, [])
    failing = {(task.family, task.level): 0.0 for task in practised}
    made = Practice(config, practised, {}, 0, failing).draw(8)
    assert not {task.id for task in made} & {task.id for task in tasks}, "all made anew"
    assert not {task.id for task in Practice(config, practised, {}, 0, failing, made).draw(8)} & {t.id for t in made}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("rl.keep=best",), "rl.keep=best needs evaluations to choose by; set rl.eval_every"),
        (("rl.eval_every=1", "rl.eval_tasks=4"), "rl.eval_tasks=4 leaves none of 4 training tasks"),
    ],
)
def test_what_cannot_be_evaluated_is_one_sentence(given: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        set_aside(settings(*given), some_tasks(4))


def test_the_best_is_the_first_of_equals() -> None:
    validated = Validated()
    assert validated.best is None
    validated.curve = [{"update": u, "success": s} for u, s in ((0, 0.2), (4, 0.5), (8, 0.5), (10, 0.1))]
    assert validated.best == 4
    again = Validated()
    again.load_state_dict(validated.state_dict())
    assert again == validated


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_policy_that_was_ruined_is_seen_and_only_published_where_the_last_one_is_asked_for(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    """Its head is emptied in the third update: from then on nothing that it says can be read."""
    weights: dict[int, str] = {}
    real = PolicyGradient.save

    def save(trainer: PolicyGradient, *given: set[int]) -> None:
        weights[trainer.updates] = fingerprint(trainer.learner.policy.model.parameters())
        real(trainer, *given)

    monkeypatch.setattr(PolicyGradient, "save", save)
    before_update(monkeypatch, 2, scale_head(0.0))
    config = school.config(tmp_path, *EVERY_TWO, f"rl.keep={keep}")
    result, notes = play(school, config)
    curve = {point["update"]: point["success"] for point in result["validation"]}
    assert list(curve) == [0, 2, 3]
    assert curve[3] == 0.0 < curve[0]
    best = max(curve, key=lambda update: curve[update])
    assert result["kept_update"] == (best if keep == "best" else 3)
    if keep == "best":
        assert result["policy"]["fingerprint"] == weights[best]
    else:
        assert result["policy"]["fingerprint"] not in weights.values()
    said = [(point["step"], point["validation_success"]) for point in notes.curve if "validation_success" in point]
    assert said == list(curve.items())
    store = open_store(config)
    apart = {task.id for task in set_aside(config, load_tasks(school.tasks))[1]}
    for update in curve:
        played = store.trajectories(f"eval-{VERSION}-{update:04d}")
        assert {one.task.id for one in played} == apart
        assert {(one.policy.version, one.sampling.temperature) for one in played} == {(f"{VERSION}@{update}", 0.0)}
    assert not apart & {one.task.id for one in store.trajectories(VERSION)}


def test_looking_changes_nothing_and_a_run_that_is_killed_ends_as_one_that_was_not(
    school: School, tmp_path: Path
) -> None:
    def run(home: str, *given: str, kill: bool = False) -> tuple[object, ...]:
        def harm(_: PolicyGradient) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.MonkeyPatch.context() as patch:
            if kill:
                before_update(patch, 2, harm)
            result, _ = play(school, school.config(tmp_path / home, *given))
        return result["policy"]["fingerprint"], result["validation"], result["kept_update"]

    whole = in_child(lambda: run("whole", *BEST))
    assert in_child(lambda: run("parts", *BEST, kill=True)) is None
    assert in_child(lambda: run("parts", *BEST)) == whole
    often = in_child(lambda: run("often", "rl.eval_every=1", *EVERY_TWO[1:]))
    seldom = in_child(lambda: run("seldom", "rl.eval_every=9", *EVERY_TWO[1:]))
    assert (len(often[1]), len(seldom[1])) == (4, 2)
    assert often[0] == seldom[0]
