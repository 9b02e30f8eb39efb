"""What travels between a client, an env server and its workers: JSON forms, and frames that carry an image as bytes.

A frame is 4 bytes of big-endian length, that many bytes of JSON, then the image to the end. On a worker's socket each
frame stands behind 8 bytes with its own length. Readers are strict: an unknown field, a wrong type or a missing value
is refused with a sentence that names it.

Needs the standard library and `flywheel.types` only, because workers run in a virtual environment of their own.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.errors import (
    ActionError,
    EnvError,
    EvaluatorError,
    FlywheelError,
    InfrastructureError,
    SetupError,
    TaskError,
)
from flywheel.types import ACTION_TAGS, ACTIONS, Action, Observation, Screenshot, Size, StepResult, Task

FRAME_TYPE = "application/vnd.flywheel.frame"
"""Media type of a frame."""

_ERRORS: dict[str, type[EnvError]] = {"setup": SetupError, "evaluator": EvaluatorError}


class WireError(ValueError):
    """A value that is not what the protocol says; the message is a sentence."""


# --- JSON forms ----------------------------------------------------------------------------------------------


def action_to_json(action: Action) -> dict[str, Any]:
    """`{"type": "click", "x": 4, ...}` with every field."""
    return {"type": ACTION_TAGS[type(action)], **_values(action)}


def action_from_json(value: Any) -> Action:
    """Raises `ActionError`. Fields with a default may be left out."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str) or value["type"] not in ACTIONS:
        raise ActionError(f"An action is an object whose `type` is one of {', '.join(ACTIONS)}.")
    rest = {name: each for name, each in value.items() if name != "type"}
    try:
        action: Action = _build(ACTIONS[value["type"]], rest, f"the action {value['type']}")
    except WireError as error:
        raise ActionError(str(error)) from error
    return action


def task_to_json(task: Task) -> dict[str, Any]:
    """Every field of the task."""
    return _values(task)


def task_from_json(value: Any) -> Task:
    """Raises `TaskError`. `id`, `instruction` and `domain` are required."""
    try:
        task: Task = _build(Task, value, "the task")
    except WireError as error:
        raise TaskError(str(error)) from error
    return task


def options_to_json(options: ObserveOptions) -> dict[str, Any]:
    """Every field."""
    return _values(options)


def options_from_json(value: Any) -> ObserveOptions:
    """Raises `WireError`. Every field has a default."""
    options: ObserveOptions = _build(ObserveOptions, value, "the options of observation")
    return options


def capabilities_to_json(capabilities: Capabilities) -> dict[str, Any]:
    """Every field; sets come sorted."""
    return {name: sorted(v) if isinstance(v, frozenset) else v for name, v in _values(capabilities).items()}


def capabilities_from_json(value: Any) -> Capabilities:
    """Raises `WireError`. Unknown fields of a newer server are ignored."""
    known = {field.name for field in fields(Capabilities)}
    if not isinstance(value, Mapping):
        raise WireError("Capabilities are an object.")
    capabilities: Capabilities = _build(Capabilities, {k: v for k, v in value.items() if k in known}, "capabilities")
    return capabilities


def error_to_json(error: Exception) -> dict[str, Any]:
    """`{"error": {"kind", "message"}}`; what is no `EnvError` is an infrastructure failure, a bug named by its type."""
    if isinstance(error, FlywheelError):
        return {"error": {"kind": getattr(error, "kind", "infrastructure"), "message": str(error)}}
    message = f"The desktop's worker failed with {type(error).__name__}: {' '.join(str(error).split())[:300]}."
    return {"error": {"kind": "infrastructure", "message": message}}


def error_from_json(value: Any) -> EnvError:
    """The exception that `error_to_json` wrote; anything unknown is an `InfrastructureError`."""
    told = value.get("error") if isinstance(value, Mapping) else None
    if not isinstance(told, Mapping):
        return InfrastructureError(f"The env server answered with {str(value)[:200]!r}, which is no error of its own.")
    return _ERRORS.get(str(told.get("kind")), InfrastructureError)(str(told.get("message")))


# --- frames --------------------------------------------------------------------------------------------------


def encode_frame(head: Mapping[str, Any], image: bytes = b"") -> bytes:
    """4 bytes of length, JSON, image."""
    text = json.dumps(head, separators=(",", ":"), default=_plain).encode("ascii")
    return b"".join((len(text).to_bytes(4, "big"), text, image))


def frame_head(frame: bytes) -> tuple[dict[str, Any], int]:
    """The JSON object of a frame and where its image begins. Raises `WireError` when the frame was cut short."""
    end = 4 + int.from_bytes(frame[:4], "big")
    if len(frame) < max(4, end):
        raise WireError(f"A frame of {len(frame)} bytes was cut short.")
    try:
        head = json.loads(frame[4:end])
    except (ValueError, RecursionError) as error:
        raise WireError("The head of a frame is not JSON.") from error
    if not isinstance(head, dict):
        raise WireError("The head of a frame is not an object.")
    return head, end


def encode_observation(observation: Observation) -> bytes:
    """A frame whose image is the screenshot as it is encoded."""
    head, image = _observation_head(observation)
    return encode_frame(head, image)


def decode_observation(frame: bytes) -> Observation:
    """Raises `WireError`."""
    head, start = frame_head(frame)
    return _observation(head, frame[start:])


def encode_result(result: StepResult) -> bytes:
    """A frame whose image is the screenshot of the observation."""
    head, image = _observation_head(result.observation)
    told = {"executed": result.executed, "error": result.error, "done": result.done}
    return encode_frame({"observation": head, **told}, image)


def decode_result(frame: bytes) -> StepResult:
    """Raises `WireError`."""
    head, start = frame_head(frame)
    observation = _observation(head.pop("observation", None), frame[start:])
    result: StepResult = _build(StepResult, {**head, "observation": observation}, "the result of a step")
    return result


def _observation_head(observation: Observation) -> tuple[dict[str, Any], bytes]:
    shot = observation.screenshot
    about = None if shot is None else {"codec": shot.codec, "width": shot.width, "height": shot.height}
    head = {
        "screenshot": about,
        "accessibility_tree": observation.accessibility_tree,
        "terminal": observation.terminal,
        "last_result": observation.last_result,
    }
    return head, b"" if shot is None else shot.data


def _observation(head: Any, image: bytes) -> Observation:
    if not isinstance(head, Mapping):
        raise WireError("An observation is an object.")
    rest = {name: value for name, value in head.items() if name != "screenshot"}
    about = head.get("screenshot")
    if about is not None and not isinstance(about, Mapping):
        raise WireError("The screenshot of an observation is an object with codec, width and height, or null.")
    shot = None if about is None else _build(Screenshot, {**about, "data": image}, "the screenshot")
    if shot is not None and shot.codec == "raw" and len(image) != 3 * shot.width * shot.height:
        raise WireError(f"A raw screenshot of {shot.width} x {shot.height} came with {len(image)} bytes.")
    observation: Observation = _build(Observation, {**rest, "screenshot": shot}, "the observation")
    return observation


# --- strict reading of dataclasses -------------------------------------------------------------------------------


def _values(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _plain(value: Any) -> Any:
    """For `json.dumps`: any mapping is an object, any set a list."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"A {type(value).__name__} has no JSON form.")


@cache
def _hints(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    hints = get_type_hints(kind)
    return {field.name: (field, hints[field.name]) for field in fields(kind)}


def _build(kind: type, values: Any, what: str) -> Any:
    """An instance of a dataclass from a mapping whose values have the types that the fields declare."""
    if not isinstance(values, Mapping):
        raise WireError(f"{what[0].upper()}{what[1:]} must be an object.")
    known = _hints(kind)
    if unknown := values.keys() - known.keys():
        raise WireError(f"There is no field {sorted(map(str, unknown))[0][:40]!r} in {what}.")
    made = {}
    for name, (field, hint) in known.items():
        if name in values:
            made[name] = _checked(values[name], hint, f"`{name}` of {what}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise WireError(f"The field `{name}` of {what} is missing.")
    return kind(**made)


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value` as `hint` says, lists becoming tuples and sets. Raises `WireError`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is Size or origin is Mapping:
        return _composite(value, hint, origin, where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            raise WireError(f"{where} must be one of {', '.join(map(str, arguments))}.")
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        return _checked(value, next(each for each in arguments if each is not NoneType), where)
    if origin in (tuple, frozenset):
        return _sequence(value, origin, arguments, where)
    return _scalar(value, hint, where)


def _composite(value: Any, hint: Any, origin: Any, where: str) -> Any:
    if hint is Size:
        return Size(*_sequence(value, tuple, (int, int), where))
    if origin is Mapping and not isinstance(value, Mapping):
        raise WireError(f"{where} must be an object.")
    return value


def _sequence(value: Any, origin: Any, arguments: tuple[Any, ...], where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise WireError(f"{where} must be a list.")
    if origin is tuple and Ellipsis not in arguments:
        if len(value) != len(arguments):
            raise WireError(f"{where} must hold {len(arguments)} values.")
        return tuple(_checked(each, hint, where) for each, hint in zip(value, arguments, strict=True))
    return origin(_checked(each, arguments[0], where) for each in value)


def _scalar(value: Any, hint: Any, where: str) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < 1e9:
            raise WireError(f"{where} must be a number below 1e9.")
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise WireError(f"{where} must be of type {getattr(hint, '__name__', hint)}, not {type(value).__name__}.")
    return value
