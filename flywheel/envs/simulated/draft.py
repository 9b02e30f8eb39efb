"""A desktop while it is being made up: widgets without places, and the goal that a family sets."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from flywheel.envs.simulated.scene import Part, Scene
from flywheel.envs.simulated.vocabulary import ANSWERS, NAMES, TYPED

TRANSIENT = 4
"""At most this many widgets appear at once when a menu or a dialog opens; that much room is kept free."""

_DISTRACTORS = ("button", "check", "field", "menu", "icon", "bin")


@dataclass(slots=True)
class Goal:
    """What a task asks. Events are in the order in which they must happen; fields and checks hold the wanted values
    of the widgets concerned; `missing` is the caption of the widget that an infeasible task asks for."""

    instruction: str
    events: list[list[Any]] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    missing: str | None = None


class Draft:
    """Adds widgets with unused captions as long as there is room.

    Parts that the task needs come first; `needed` counts them once distractors are added.

    Args:
        rng: every choice comes from it.
        room: how many widgets may be on the screen at rest.
        slots: rows of a list that can be seen at once.
    """

    def __init__(self, rng: random.Random, room: int, slots: int) -> None:
        self.rng = rng
        self.room = room
        self.slots = slots
        self.parts: list[Part] = []
        self.needed = 0
        self._names = rng.sample(NAMES, len(NAMES))
        self._texts = rng.sample(TYPED, len(TYPED))

    def name(self) -> str:
        """A caption that stands nowhere yet."""
        return self._names.pop()

    def text(self) -> str:
        """A word to type, different each time."""
        return self._texts.pop()

    def add(self, kind: str, caption: str | None = None, **properties: Any) -> int:
        """Returns the number of the new part."""
        if properties.get("parent") is None:
            self.room -= 1
        self.parts.append(Part(kind, caption or self.name(), **properties))
        return len(self.parts) - 1

    def caption(self, index: int) -> str:
        return self.parts[index].caption

    def items(self, parent: int, count: int) -> list[str]:
        """Adds `count` items to a menu or icon and returns their captions."""
        return [self.caption(self.add("item", parent=parent)) for _ in range(count)]

    def dialog(self, button: int, answers: int) -> list[str]:
        """Lets a button open a dialog; returns the captions of its answers."""
        title = self.add("dialog", parent=button)
        captions = self.rng.sample(ANSWERS[:answers], answers)
        for caption in captions:
            self.add("button", caption, parent=title)
        return captions

    def list_of(self, rows: int) -> tuple[str, list[str]]:
        """Adds a list; returns its caption and those of its rows from the top."""
        index = self.add("list", slots=((0, 0, 1, 1),) * self.slots)
        self.room -= self.slots
        return self.caption(index), [self.caption(self.add("row", parent=index)) for _ in range(rows)]

    def distract(self, count: int, kind: str | None = None) -> None:
        """Adds up to `count` widgets that the task does not need, every second one of `kind`."""
        self.needed = len(self.parts)
        for i in range(count):
            if self.room <= 0 or not self._names:
                return
            choice = kind if kind and i % 2 else self.rng.choice(_DISTRACTORS)
            if choice == "menu" and len(self._names) < 3:
                choice = "button"
            index = self.add(choice, checked=choice == "check" and self.rng.random() < 0.4)
            if choice == "menu":
                self.items(index, 2)


def state_expected(scene: Scene, goal: Goal) -> dict[str, Any]:
    """The whole state in which `goal` is reached and nothing else has changed.

    The goal's fields and checks come first, in the order of the instruction, which the oracle follows.
    """
    fields, checks = dict(goal.fields), dict(goal.checks)
    for part in scene.parts:
        if part.kind == "field":
            fields.setdefault(part.caption, part.text)
        elif part.kind == "check":
            checks.setdefault(part.caption, part.checked)
    events = [[*event, {**fields, **checks}] if event[0] == "submit" else event for event in goal.events]
    return {"events": events, "fields": fields, "checks": checks}


def reorder(parts: list[Part], order: list[int]) -> tuple[Part, ...]:
    """The parts in a new order, their parents renumbered."""
    position = {old: new for new, old in enumerate(order)}
    moved = []
    for old in order:
        part = parts[old]
        moved.append(part if part.parent is None else replace(part, parent=position[part.parent]))
    return tuple(moved)


def opened_together(parts: list[Part]) -> list[list[int]]:
    """Groups of parts that appear together: the items of one menu or icon; a dialog with its answers."""
    groups: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        if part.parent is None or part.kind == "row":
            continue
        opener = i if part.kind == "dialog" else part.parent
        groups.setdefault(opener, []).append(i)
    return list(groups.values())


def reading_order(parts: list[Part]) -> list[int]:
    """At rest first, row by row, so that the order tells nothing about the goal; rows keep theirs."""
    resting = [i for i, part in enumerate(parts) if part.parent is None]
    resting.sort(key=lambda i: (parts[i].box or (0, 0))[1::-1])
    return resting + [i for i, part in enumerate(parts) if part.parent is not None]
