"""The base policy: built and pre-trained on the spot, or any saved Qwen3-VL by its path."""

import json
from pathlib import Path

import pytest

from flywheel.actions.registry import action_space
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.oracle import plan
from flywheel.errors import PolicyError
from flywheel.jobs import base_model
from flywheel.jobs.base_model import offline_processor
from flywheel.modeling.policy import load_policy, make_chat
from flywheel.trainers.model import fingerprint
from flywheel.types import Observation, PolicyRef, Screenshot, Size
from flywheel.workspace import read_policy
from tests.tiny import SCREEN, Notes, Tiny, small_config, some_tasks

FEW_STEPS = ("model.tiny.vision_steps=2", "model.tiny.grounding_steps=2")


def test_it_builds_and_pretrains_a_policy(tmp_path: Path) -> None:
    notes, out = Notes(), tmp_path / "base"
    result = base_model.run(small_config(tmp_path, *FEW_STEPS), {"out": str(out)}, notes)
    ref = PolicyRef(**result["policy"])
    assert (ref.version, ref.parent) == ("base", None)
    assert read_policy(out) == ref
    metrics = result["metrics"]
    assert metrics["parameters"] < 1_000_000
    assert metrics["vocabulary"] > 2000
    assert 0 <= metrics["caption_accuracy"] <= 1
    assert 0 <= metrics["grounding_accuracy"] <= 1
    assert ["vision_loss" in point for point in notes.curve] == [True, True, False, False]
    model, chat = load_policy(small_config(tmp_path), ref)
    assert fingerprint(model.parameters()) == ref.fingerprint
    assert len(chat.processor.tokenizer) == metrics["vocabulary"]


def test_the_seed_of_the_experiment_decides_it(tmp_path: Path) -> None:
    prints = []
    for seed in (0, 0, 1):
        config = small_config(tmp_path, *FEW_STEPS, f"seed={seed}")
        prints.append(base_model.run(config, {"out": str(tmp_path / "x")}, Notes())["policy"]["fingerprint"])
    assert prints[0] == prints[1] != prints[2]


def test_another_size_is_a_matter_of_settings(tmp_path: Path) -> None:
    sizes = ("model.tiny.hidden=48", "model.tiny.layers=1", "model.tiny.heads=1", "model.tiny.mlp=96")
    config = small_config(tmp_path, *FEW_STEPS, *sizes, "model.tiny.vision_hidden=32")
    result = base_model.run(config, {"out": str(tmp_path / "base")}, Notes())
    assert result["metrics"]["parameters"] < 300_000


def test_it_learns_on_screens_as_it_will_see_them(tmp_path: Path) -> None:
    """A screen of 640 x 384 that is scaled down to 160 x 96 has 15 cells for it, not 240."""
    config = small_config(tmp_path, *FEW_STEPS, "env.width=640", "env.height=384", "model.max_pixels=15360")
    out = tmp_path / "base"
    result = base_model.run(config, {"out": str(out)}, Notes())
    _, chat = load_policy(config, PolicyRef(**result["policy"]))
    assert chat.grid(Size(640, 384)) == chat.grid(Size(160, 96)) == (1, 6, 10)


def test_every_solution_of_the_desktop_is_short_in_the_tokens_of_the_tiny_model(tiny: Tiny) -> None:
    """Fixed text is one token, so that an answer costs about 17 where Qwen's own tokenizer takes some 60."""
    space, lengths = action_space("computer_use"), []
    for task in some_tasks(60, levels=(1, 2, 3, 4)):
        for step in plan(SimulatedDesktop(), task):
            text = space.format(step.action, SCREEN, thinking=step.thinking, brief=step.brief)
            lengths.append(len(tiny.chat.tokenise(text)))
    assert sum(lengths) / len(lengths) < 17
    assert max(lengths) < 40


def test_the_words_of_prompts_do_not_depend_on_the_tokenizer(tiny: Tiny) -> None:
    """With few merges the prompt is longer, and says the same."""
    task, black = some_tasks(1)[0], Screenshot(bytes(64 * 64 * 3), 64, 64)
    coarse = make_chat(tiny.config, offline_processor(50))
    fine = tiny.chat.first(task, Observation(black)).ids
    assert coarse.decode(coarse.first(task, Observation(black)).ids) == tiny.chat.decode(fine)


def test_a_path_that_holds_nothing_is_one_sentence(tmp_path: Path) -> None:
    config = small_config(tmp_path, f"model.base={tmp_path / 'nothing'}")
    with pytest.raises(PolicyError, match="cannot be loaded") as caught:
        base_model.run(config, {"out": str(tmp_path / "base")}, Notes())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "base").exists()


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(PolicyError, match=r"is a llama checkpoint.*Qwen/Qwen3-VL-4B-Instruct"):
        base_model.run(small_config(tmp_path, f"model.base={tmp_path}"), {"out": str(tmp_path / "base")}, Notes())
