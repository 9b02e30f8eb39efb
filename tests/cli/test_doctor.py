"""Every check of the doctor: that it passes on what is sound, and that it fails on the defect it is there for."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.actions.base import Parsed
from flywheel.actions.computer_use import ComputerUse
from flywheel.chat import Chat
from flywheel.cli.doctor import ports
from flywheel.config import Config, load_config
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.jobs.doctor import policy_findings, trainer_logprobs
from flywheel.jobs.findings import Finding
from flywheel.jobs.machine_checks import disk_space, store_writable, tracking, versions
from flywheel.jobs.policy_checks import (
    Logprobs,
    accelerator,
    coordinate_scale,
    failure_reaches_evaluator,
    logprobs_agree,
    packed_as_separate,
    parser_round_trip,
    pixels_reach_model,
    processor_gives_pixels,
)
from flywheel.store.store import TrajectoryStore
from flywheel.types import Action, Click, Done, Size, StepResult, TrainingSample
from tests.cli.conftest import Flywheel
from tests.tiny import SCREEN, Tiny, episodes, some_tasks


def failed(finding: Finding, says: str) -> bool:
    """Failed, for this reason, with a remedy."""
    return not finding.ok and says in finding.detail and bool(finding.mend)


# --- the whole command -------------------------------------------------------------------------------------------


def test_a_sound_machine_is_in_order(staged: Flywheel, tmp_path: Path) -> None:
    ran = staged("doctor", "--set", f"home={tmp_path}")
    lines = ran.out.splitlines()
    assert ran.code == 0, ran.out
    assert lines[-1] == "Everything is in order."
    assert all(line.startswith("ok ") for line in lines[:-1])
    names = [line.split()[1] for line in lines[:-1]]
    expected = {"versions", "disk", "store", "tracking", "ports", "accelerator", "parser", "coordinates", "failure"}
    assert expected | {"engine", "processor", "pixels", "logprobs", "packing"} == set(names)


def test_one_failure_is_status_1_and_says_what_to_do(staged: Flywheel, tmp_path: Path) -> None:
    settings = (f"home={tmp_path}", "tracking.enabled=true", "tracking.uri=http://127.0.0.1:1")
    ran = staged("doctor", *(word for setting in settings for word in ("--set", setting)))
    assert ran.code == 1
    (line,) = [line for line in ran.out.splitlines() if line.startswith("FAIL")]
    assert line.startswith("FAIL tracking")
    assert "-> correct tracking.uri" in line
    assert ran.out.endswith("1 failed.\n")


def test_a_given_policy_is_checked(tiny: Tiny) -> None:
    findings = list(policy_findings(tiny.config, tiny.policy, tiny.fresh().model, tiny.chat))
    assert [finding.name for finding in findings if not finding.ok] == []


# --- the machine ---------------------------------------------------------------------------------------------------


def test_versions_out_of_range_or_missing() -> None:
    assert versions(["pytest>=7", "nothing-like-it; extra == 'dev'"]).ok
    assert failed(versions(["pytest<3"]), "is not <3")
    assert failed(versions(["nothing-like-it>=1"]), "nothing-like-it is missing")


def test_disk_without_room(tmp_path: Path) -> None:
    assert disk_space(tmp_path / "not" / "yet", wanted=1).ok
    assert failed(disk_space(tmp_path, wanted=10**18), "GB free")


def test_store_that_cannot_be_written(tmp_path: Path) -> None:
    assert store_writable(Config(home=str(tmp_path))).ok
    assert not list(tmp_path.iterdir()), "the check leaves nothing behind"
    (tmp_path / "file").touch()
    assert failed(store_writable(Config(home=str(tmp_path / "file"))), "file")


def test_store_of_another_format(tmp_path: Path) -> None:
    TrajectoryStore(tmp_path / "store")
    (tmp_path / "store" / "FORMAT.json").write_text('{"version": 99}')
    assert failed(store_writable(Config(home=str(tmp_path))), "has format 99")


def test_ports_of_an_address_that_is_not_ours() -> None:
    assert ports().ok
    assert failed(ports("203.0.113.1"), "in use")


def test_tracking_that_cannot_be_reached(tmp_path: Path) -> None:
    def found(uri: str) -> Finding:
        return tracking(Config.model_validate({"home": str(tmp_path), "tracking": {"uri": uri}}))

    database = tmp_path / "mlflow.db"
    assert tracking(load_config("embedded", ["tracking.enabled=false"])).ok
    assert found("").ok
    assert failed(found("http://127.0.0.1:1"), "refused")
    database.write_text("this is no database, whatever its name says")
    assert failed(found(f"sqlite:///{database}"), "not a database")


def test_tracking_whose_database_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flywheel.jobs.machine_checks.PATIENCE", 0.05)
    database = tmp_path / "mlflow.db"
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    assert failed(tracking(load_config("embedded", [f"tracking.uri=sqlite:///{database}"])), "locked")
    holder.close()


# --- what the policy writes ----------------------------------------------------------------------------------------


def test_a_gpu_that_is_asked_for_and_not_seen() -> None:
    assert accelerator("auto").ok
    assert accelerator("cuda").ok is torch.cuda.is_available()


class _Trimmed(Chat):
    """Loses the stop tag on the way back, as a stop string that is not kept does."""

    def decode(self, completion_ids: Sequence[int]) -> str:
        return super().decode(completion_ids).removesuffix("</tool_call>")


class _Unscaled(ComputerUse):
    """Passes the model's grid on as pixels."""

    def parse(self, text: str, screen: Size) -> Parsed:
        return super().parse(text, Size(1000, 1000))


def test_a_stop_tag_that_is_trimmed(tiny: Tiny) -> None:
    trimmed = _Trimmed(tiny.chat.processor, tiny.chat.words, tiny.chat.model_size)
    assert parser_round_trip(tiny.chat.space, tiny.chat).ok
    assert failed(parser_round_trip(tiny.chat.space, trimmed), "came back as")


def test_actions_that_become_others(tiny: Tiny) -> None:
    class Single(ComputerUse):
        def parse(self, text: str, screen: Size) -> Parsed:
            parsed = super().parse(text, screen)
            once = replace(parsed.action, count=1) if isinstance(parsed.action, Click) else parsed.action
            return replace(parsed, action=once)

    assert failed(parser_round_trip(Single(), tiny.chat), "10 of 12 actions")


def test_coordinates_that_are_not_scaled() -> None:
    assert coordinate_scale(ComputerUse()).ok
    assert failed(coordinate_scale(_Unscaled()), "grid steps")


def test_a_failure_that_never_reaches_the_checker(tiny: Tiny) -> None:
    class Deaf(SimulatedEnv):
        async def step(self, action: Action) -> StepResult:
            if isinstance(action, Done):
                action = Click(1, 1)
            return await super().step(action)

    assert failure_reaches_evaluator(tiny.config, lambda: SimulatedEnv(SCREEN)).ok
    assert failed(failure_reaches_evaluator(tiny.config, lambda: Deaf(SCREEN)), "FAIL scores 0 on an infeasible task")


# --- what it sees and remembers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples(tiny: Tiny) -> list[TrainingSample]:
    return [tiny.chat.sample(trajectory) for trajectory in episodes(tiny, some_tasks(3))]


@pytest.fixture(scope="module")
def sound(tiny: Tiny) -> Logprobs:
    return trainer_logprobs(tiny.fresh().model, tiny.chat)


def test_a_processor_without_pixels(tiny: Tiny, samples: list[TrainingSample]) -> None:
    image = samples[0].images[0]
    assert processor_gives_pixels(tiny.chat.processor, tiny.chat, image).ok
    bare = tiny.chat.processor.tokenizer
    assert failed(processor_gives_pixels(bare, tiny.chat, image), "has no image processor")


def test_pixels_that_differ_from_the_processors_own(tiny: Tiny, samples: list[TrainingSample]) -> None:
    images = tiny.chat.processor.image_processor

    class Dim:
        image_processor = staticmethod(
            lambda *args, **kwargs: {"pixel_values": images(*args, **kwargs)["pixel_values"] / 2}
        )

    assert failed(processor_gives_pixels(Dim(), tiny.chat, samples[0].images[0]), "pixels off by")


def test_a_blind_model(tiny: Tiny, samples: list[TrainingSample], sound: Logprobs) -> None:
    model = tiny.fresh().model
    with torch.no_grad():
        model.model.visual.patch_embed.proj.weight.zero_()
    assert pixels_reach_model(samples, sound).ok
    assert failed(pixels_reach_model(samples, trainer_logprobs(model, tiny.chat)), "by up to 0")


def test_a_trainer_with_other_numbers_than_the_engine(
    tiny: Tiny, samples: list[TrainingSample], sound: Logprobs
) -> None:
    model = tiny.fresh().model
    with torch.no_grad():
        model.model.language_model.norm.weight.mul_(1.01)
    hot = [tiny.chat.sample(trajectory) for trajectory in episodes(tiny, some_tasks(1), temperature=2.0)]
    assert logprobs_agree(samples, sound, 1e-4).ok
    assert failed(logprobs_agree(samples, trainer_logprobs(model, tiny.chat), 1e-4), "differ by at most")
    assert failed(logprobs_agree(hot, sound, 1e-4), "differ by at most")


def test_documents_that_see_each_other(samples: list[TrainingSample], sound: Logprobs) -> None:
    def leaking(together: Sequence[TrainingSample]) -> torch.Tensor:
        return sound(together) + 0.01 * (len(together) - 1)

    assert packed_as_separate(samples, sound, 1e-4).ok
    assert failed(packed_as_separate(samples, leaking, 1e-4), "documents packed and apart")


def test_an_engine_that_cannot_play_ends_the_examination(tiny: Tiny) -> None:
    class Broken(Chat):
        def first(self, *_: Any) -> Any:
            raise ValueError("no prompt")

    broken = Broken(tiny.chat.processor, tiny.chat.words, tiny.chat.model_size)
    with pytest.raises(ValueError, match="no prompt"):
        list(policy_findings(tiny.config, tiny.policy, tiny.fresh().model, broken))
