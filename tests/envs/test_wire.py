"""What is sent is what arrives, and nothing else is taken for it."""

import dataclasses
import json
from typing import Any

import pytest

from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.envs.wire import (
    WireError,
    action_from_json,
    action_to_json,
    capabilities_from_json,
    capabilities_to_json,
    decode_observation,
    decode_result,
    encode_frame,
    encode_observation,
    encode_result,
    error_from_json,
    error_to_json,
    frame_head,
    options_from_json,
    options_to_json,
    task_from_json,
    task_to_json,
)
from flywheel.errors import ActionError, ConfigError, EvaluatorError, InfrastructureError, SetupError, TaskError
from flywheel.testing import random_trajectory
from flywheel.types import Observation, Screenshot, Size, StepResult

TRAJECTORY = random_trajectory("wire", turns=40, size=(64, 48))


def sent(value: Any) -> Any:
    """After a journey as JSON."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("codec", ["raw", "png", "webp"])
def test_everything_arrives_as_it_was_sent(codec: Any) -> None:
    for turn in random_trajectory(f"wire-{codec}", turns=40, size=(64, 48), codec=codec).turns:
        assert action_from_json(sent(action_to_json(turn.action))) == turn.action  # type: ignore[arg-type]
        assert decode_observation(encode_observation(turn.observation)) == turn.observation
        result = StepResult(turn.observation, executed=False, error="It is not there.", done=True)
        assert decode_result(encode_result(result)) == result
    head, _ = frame_head(encode_frame({"task": task_to_json(TRAJECTORY.task)}))
    assert task_from_json(head["task"]) == TRAJECTORY.task


def test_options_and_capabilities_arrive() -> None:
    options = ObserveOptions("jpeg", 50, True, 99, True)
    assert options_from_json(sent(options_to_json(options))) == options
    offered = Capabilities(Size(640, 400), frozenset({"gimp", "chrome"}), "linux", True, frozenset({"code"}), True)
    assert capabilities_from_json(sent(capabilities_to_json(offered))) == offered
    assert capabilities_from_json({**sent(capabilities_to_json(offered)), "newer": 1}) == offered


def test_an_observation_without_a_picture_arrives() -> None:
    blind = Observation(None, accessibility_tree="a \ud800 lone surrogate", terminal="$ ls")
    assert decode_observation(encode_observation(blind)) == blind


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "click",
        {},
        {"type": "fly"},
        {"type": ["click"]},
        {"type": "click", "x": 1},
        {"type": "click", "x": 1, "y": 2.5},
        {"type": "click", "x": True, "y": 2},
        {"type": "click", "x": 1, "y": 2, "button": "wheel"},
        {"type": "click", "x": 1, "y": 2, "z": 3},
        {"type": "key", "keys": "ctrl"},
        {"type": "key", "keys": ["ctrl", 1]},
        {"type": "drag", "x": 1, "y": 2, "start": [1]},
        {"type": "wait", "seconds": float("nan")},
        {"type": "wait", "seconds": 1e300},
        {"type": "type", "text": None},
    ],
)
def test_what_is_no_action_is_refused_in_a_sentence(value: Any) -> None:
    with pytest.raises(ActionError, match=r"\.$"):
        action_from_json(value)


@pytest.mark.parametrize(
    "change",
    [{"id": 5}, {"config": {}}, {"config": [1]}, {"evaluator": []}, {"level": "1"}, {"split": "test"}, {"x": 1}],
)
def test_what_is_no_task_is_refused_in_a_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=r"\.$"):
        task_from_json({**task_to_json(TRAJECTORY.task), **change})
    with pytest.raises(TaskError, match="missing"):
        task_from_json({"id": "a"})


def test_a_frame_that_was_cut_short_is_refused_wherever_it_was_cut() -> None:
    frame = encode_observation(Observation(Screenshot(bytes(12), 2, 2)))
    for length in range(len(frame)):
        with pytest.raises(WireError):
            decode_observation(frame[:length])
    assert decode_observation(frame).screenshot == Screenshot(bytes(12), 2, 2)


@pytest.mark.parametrize("head", [b"[]", b"{", b"\xff", b"nonsense", b"[" * 100_000])
def test_a_frame_with_another_head_is_refused(head: bytes) -> None:
    with pytest.raises(WireError):
        frame_head(len(head).to_bytes(4, "big") + head)


def test_errors_keep_their_kind() -> None:
    for error in (SetupError("No file."), EvaluatorError("No checker."), InfrastructureError("No machine.")):
        told = error_from_json(sent(error_to_json(error)))
        assert (type(told), str(told)) == (type(error), str(error))
    assert type(error_from_json(error_to_json(ConfigError("No image.")))) is InfrastructureError
    assert "ZeroDivisionError" in str(error_from_json(error_to_json(ZeroDivisionError("a bug"))))
    assert type(error_from_json("<html>")) is InfrastructureError


def test_every_action_of_the_types_has_a_form() -> None:
    kinds = {type(turn.action) for turn in TRAJECTORY.turns}
    assert len(kinds) > 6
    for turn in TRAJECTORY.turns:
        assert turn.action is not None
        assert action_to_json(turn.action).keys() == {"type", *(f.name for f in dataclasses.fields(turn.action))}
