"""Profiles and settings: values over defaults, and a sentence for everything that cannot be used."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from flywheel.config import Config, known_keys, load_config, profile_names
from flywheel.errors import ConfigError


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_that_ships_is_usable(name: str) -> None:
    assert isinstance(load_config(name), Config)


def test_settings_go_over_the_profile_and_the_last_one_wins(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text("seed: 4\nsft:\n  lr: 1e-3\n  steps: 7\nenv:\n  families: [click, type]\n")
    config = load_config(str(profile), ["sft.steps=8", "sft.steps=9", "rl.clip_low=3e-4", "env.levels=[1, 2]"])
    assert (config.seed, config.sft.lr, config.sft.steps) == (4, 1e-3, 9)
    assert (config.rl.clip_low, config.env.families, config.env.levels) == (3e-4, ("click", "type"), (1, 2))
    assert config.rollout == Config().rollout


def test_an_empty_profile_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert load_config(str(tmp_path / "empty.yaml")) == Config()


def test_settings_hold_for_good() -> None:
    with pytest.raises(ValidationError):
        Config().sft.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize("key", known_keys())
def test_a_letter_too_many_is_answered_with_the_right_key(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(settings=[f"{key}x=1"])
    assert str(refused.value) == f"Unknown key '{key}x' in setting; did you mean {key}?"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("grounding_stepz=3", "did you mean model.tiny.grounding_steps?"),
        ("qqqqqqqq=3", "see docs/configuration.md."),
        ("sft=3", "Unknown key 'sft'"),
        ("sft.steps", "is not of the form key=value"),
        ("sft.steps=[1", "is not YAML"),
        ("sft.steps=1.5", "sft.steps cannot be 1.5"),
        ("env.layout=cramped", "env.layout cannot be 'cramped'"),
        ("experiment=A B", "experiment cannot be 'A B'"),
    ],
)
def test_settings_that_cannot_be_used_are_one_sentence(setting: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(settings=[setting])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n", "must hold a mapping"),
        ("a: [", "is not valid YAML"),
        ("sft:\n  stepz: 1\n", "did you mean sft.steps?"),
    ],
)
def test_profiles_that_cannot_be_used_are_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(str(profile))
    assert says in str(refused.value)
    assert str(profile) in str(refused.value)


def test_an_unknown_profile_names_those_that_ship() -> None:
    with pytest.raises(ConfigError, match="take one of cluster, desktop, embedded"):
        load_config("gigantic")


def test_everything_lies_under_home(tmp_path: Path) -> None:
    config = load_config(settings=[f"home={tmp_path}", "experiment=two"])
    assert config.store_root == tmp_path / "store"
    assert config.experiment_dir == tmp_path / "experiments" / "two"
    assert config.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
