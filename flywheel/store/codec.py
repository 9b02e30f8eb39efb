"""Actions as JSON, tagged with their type; the reverse gives an equal action or refuses."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from flywheel.errors import StoreError
from flywheel.types import ACTION_TAGS, ACTIONS, Action

_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in ACTIONS.values()}
_REQUIRED = {kind: {field.name for field in fields(kind) if field.default is MISSING} for kind in ACTIONS.values()}


def action_type(action: Action) -> str:
    """The tag, e.g. `click`. Raises `StoreError` for anything that is not an action."""
    try:
        return ACTION_TAGS[type(action)]
    except KeyError:
        raise StoreError(f"A {type(action).__name__} is not an action; the store knows {', '.join(ACTIONS)}.") from None


def action_to_json(action: Action) -> str:
    """`{"type": "click", "x": 4, ...}` with every field, so that SQL can ask for any of them."""
    tag = action_type(action)
    return json.dumps({"type": tag} | {name: getattr(action, name) for name in _FIELDS[type(action)]})


def action_from_json(text: str) -> Action:
    """The action that `action_to_json` wrote. Raises `StoreError`."""
    try:
        values = json.loads(text)
    except ValueError:
        raise StoreError(f"The action {text[:80]!r} is not JSON.") from None
    tag = values.pop("type", None) if isinstance(values, dict) else None
    kind = ACTIONS.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise StoreError(f"The action {text[:80]!r} has no known type; the store knows {', '.join(ACTIONS)}.")
    if not _REQUIRED[kind] <= values.keys() <= set(_FIELDS[kind]):
        raise StoreError(f"The action {text[:80]!r} does not have the fields of a {tag}: {', '.join(_FIELDS[kind])}.")
    action: Action = kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
    return action


def to_json(value: Any) -> str:
    """Compact JSON; any mapping becomes an object, any tuple an array."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise StoreError(f"A {type(value).__name__} cannot be stored as JSON; task files hold only JSON values.")
