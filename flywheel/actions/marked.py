"""What the spaces without tools share: one action between two marks, after thinking and a line in words."""

import dataclasses
import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from flywheel.actions import legacy
from flywheel.actions.base import Parsed
from flywheel.actions.envelope import split_thinking, wrap
from flywheel.errors import ActionError
from flywheel.types import Action, Size


class Marked(ABC):
    """`stop`, the closing mark, is part of the text. Other formats are read as fallbacks (`legacy.py`)."""

    name: str
    version: int
    stop: str | None
    opens: ClassVar[str]
    answers: ClassVar[re.Pattern[str]]
    """Finds every answer; what it says is in the one group that matched."""
    format_name: ClassVar[str]

    @property
    def id(self) -> str:
        return f"{self.name}/{self.version}"

    def tools(self) -> list[dict[str, Any]]:
        return []

    def parse(self, text: str, screen: Size) -> Parsed:
        thinking, rest = split_thinking(text)
        found = list(self.answers.finditer(rest))
        if len(found) == 1 and rest.count(self.opens) <= 1:
            parsed = self._parsed(found[0][found[0].lastindex or 0], screen)
        else:
            parsed = legacy.read(rest, screen) or Parsed(
                None, f"There is no action in the answer; give one between {self.opens} and {self.stop}."
            )
        return dataclasses.replace(parsed, thinking=thinking)

    def format(self, action: Action, screen: Size, *, thinking: str | None = None, brief: str | None = None) -> str:
        return wrap(self.write(action, screen), thinking, brief)

    def _parsed(self, answer: str, screen: Size) -> Parsed:
        try:
            return Parsed(self.read(answer, screen), format=self.format_name)
        except ActionError as error:
            return Parsed(None, str(error), format=self.format_name)

    @abstractmethod
    def read(self, answer: str, screen: Size) -> Action:
        """What an answer says, its marks removed. Raises `ActionError`."""

    @abstractmethod
    def write(self, action: Action, screen: Size) -> str:
        """The answer, marks included. Raises `ActionError` when the space cannot say it."""
