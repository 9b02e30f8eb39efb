"""Hand-made desktops and a random policy for the tests of environments."""

import random
from typing import Any

from flywheel.envs.simulated.scene import CELL, Part, Scene, scene_to_json
from flywheel.envs.simulated.vocabulary import TYPED
from flywheel.types import Action, Click, Done, Drag, Key, Move, Scroll, Size, Task, Type, Wait

SCREEN = Size(160, 128)


def at(cell: int) -> tuple[int, int, int, int]:
    """Box of a cell of the 5 x 4 grid."""
    return cell % 5 * CELL, cell // 5 * CELL, CELL, CELL


def middle(cell: int) -> tuple[int, int]:
    left, top, width, height = at(cell)
    return left + width // 2, top + height // 2


def scene(*parts: Part) -> Scene:
    return Scene(SCREEN, "roomy", parts)


def task_of(start: Scene, evaluator: dict[str, Any] | None = None) -> Task:
    """A task on `start`; nothing is asked unless an evaluator says so."""
    config = ({"type": "simulated_desktop", "parameters": scene_to_json(start)},)
    return Task("hand-made", "Do it .", "simulated", config, evaluator or wants({"events": []}))


def wants(values: dict[str, Any]) -> dict[str, Any]:
    """An evaluator for some of `events`, `fields`, `checks`."""
    return {
        "func": ["exact_match"] * len(values),
        "result": [{"type": f"simulated_{key}"} for key in values],
        "expected": [{"type": "rule", "rules": {"expected": value}} for value in values.values()],
    }


def random_actions(rng: random.Random, screen: Size) -> list[Action]:
    """One to six actions without looking, then the end."""

    def point() -> tuple[int, int]:
        return rng.randrange(screen.width), rng.randrange(screen.height)

    def one() -> Action:
        kind = rng.randrange(8)
        if kind < 3:
            return Click(*point(), count=rng.choice((1, 1, 2)), button=rng.choice(("left", "left", "right")))
        if kind == 3:
            return Type(rng.choice(TYPED))
        if kind == 4:
            return Key(rng.choice((("ctrl", "s"), ("ctrl", "c"), ("tab",), ("enter",), ("escape",))))
        if kind == 5:
            return Drag(*point(), start=point())
        if kind == 6:
            return Scroll(rng.choice((-3, 3)), 0, *point())
        return rng.choice((Move(*point()), Wait()))

    return [one() for _ in range(rng.randint(1, 6))] + [Done(rng.choice(("success", "success", "failure")))]
