"""Rollouts by a server: it is handed the weights that are to answer, before they play and after each update."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.config import Config
from flywheel.jobs import grpo
from flywheel.jobs.doctor import policy_findings
from flywheel.jobs.pool import RolloutPool
from flywheel.modeling.policy import load_policy
from flywheel.trainers.checkpoints import handed_over
from flywheel.types import PolicyRef
from tests.jobs.test_grpo import args_for, stored
from tests.jobs.test_pool import said, same, specs_of
from tests.school import School
from tests.sglang_server import Engine, sglang
from tests.tiny import Notes, Tiny


@pytest.fixture
def served(tiny: Tiny) -> Iterator[tuple[Engine, tuple[str, ...]]]:
    """The engine, and the settings of who plays with it."""
    with sglang(tiny) as (engine, config):
        yield engine, ("rollout.engine=sglang", f"sglang.url={config.sglang.url}", "rollout.max_tokens=6")


def test_workers_without_weights_play_what_the_server_answers(
    school: School, served: tuple[Engine, tuple[str, ...]], tmp_path: Path
) -> None:
    engine, settings = served
    policy, specs = PolicyRef(**school.policy), specs_of(school, 2, temperature=0.0)
    config = school.config(tmp_path, *settings, "rollout.workers=2")
    with RolloutPool(config, policy, finish=same, digest=same) as pool:
        before = pool.play(specs)
        assert [folder for folder, _ in engine.loaded] == [Path(policy.uri)]
        for parameter in pool.model.model.language_model.parameters():
            parameter.data.mul_(0.5)
        trained = PolicyRef("sft@1", str(tmp_path / "out"))
        after = pool.play(specs, policy=trained)
    assert {t.failure for t in (*before, *after)} == {None}
    assert {t.worker for t in before} == {"worker-0", "worker-1"}
    assert said(before) != said(after)
    folder, mark = engine.loaded[-1]
    assert folder == handed_over(tmp_path / "out")
    assert mark.startswith("sft@1 ")
    assert {t.policy.version for t in after} == {"sft@1"}


def test_policy_gradient_hands_over_every_update(
    school: School, served: tuple[Engine, tuple[str, ...]], tmp_path: Path
) -> None:
    engine, settings = served
    config = school.config(tmp_path, *settings, "rl.steps=2", "rl.prompts=2", "rl.group=2", "rl.guards.enabled=false")
    args: dict[str, Any] = args_for(school, tmp_path)
    grpo.run(config, args, Notes())
    assert [mark.split()[0] for _, mark in engine.loaded] == ["grpo-iter-01@0", "grpo-iter-01@1"]
    assert {t.policy.version for t in stored(config)} == {"grpo-iter-01@0", "grpo-iter-01@1"}
    assert not handed_over(Path(args["out"])).exists()


def test_the_doctor_holds_server_and_trainer_against_each_other(
    tiny: Tiny, served: tuple[Engine, tuple[str, ...]]
) -> None:
    engine, settings = served
    config: Config = tiny.config.model_copy(
        update={"rollout": tiny.config.rollout.model_copy(update={"engine": "sglang", "max_tokens": 6})}
    )
    url = settings[1].split("=", 1)[1]
    config = config.model_copy(update={"sglang": config.sglang.model_copy(update={"url": url})})
    findings = {
        finding.name: finding for finding in policy_findings(config, tiny.policy, *load_policy(config, tiny.policy))
    }
    assert engine.requests
    assert all(finding.ok for finding in findings.values()), findings
    assert "logprobs" in findings
