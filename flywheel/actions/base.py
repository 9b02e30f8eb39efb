"""What an action space is: one versioned, two-way translation between model text and `Action`."""

from dataclasses import dataclass
from typing import Any, Protocol

from flywheel.types import Action, Size


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a completion said. `action` is None exactly when `error` is a sentence.

    `fallback` is True when the text was not in the space's own format but a known older one;
    `format` names the format that matched.
    """

    action: Action | None
    error: str | None = None
    fallback: bool = False
    format: str = ""
    thinking: str | None = None


class ActionSpace(Protocol):
    """The scale, the scroll unit, the prompt and the stop string belong to the space and share its version."""

    name: str
    version: int
    stop: str | None

    @property
    def id(self) -> str:
        """`name/version`, stored with every trajectory."""
        ...

    def system_prompt(self) -> str:
        """The system message."""
        ...

    def tools(self) -> list[dict[str, Any]]:
        """Function schemas for the chat template's `tools` argument; empty when the space has none."""
        ...

    def parse(self, text: str, screen: Size) -> Parsed:
        """Read a completion. Never raises on model text; out-of-screen coordinates are an error, not clamped."""
        ...

    def format(self, action: Action, screen: Size, *, thinking: str | None = None, brief: str | None = None) -> str:
        """Write `action` as a completion that `parse` reads back; raises `ActionError` when the space cannot say it."""
        ...


def quote(text: str, most: int = 40) -> str:
    """Model text inside a sentence: its first characters in quotes, on one line whatever it holds."""
    return repr(text[:most])
