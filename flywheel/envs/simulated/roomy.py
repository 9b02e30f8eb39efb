"""The roomy layout: a grid of 32 x 32 px cells with at most one widget each."""

import random
from dataclasses import replace

from flywheel.envs.simulated.draft import TRANSIENT, opened_together, reading_order, reorder
from flywheel.envs.simulated.scene import CELL, Box, Part, Scene
from flywheel.types import Size


def capacity(screen: Size) -> int:
    """How many widgets may be on a screen at rest, so that whatever opens finds free cells."""
    return (screen.width // CELL) * (screen.height // CELL) - TRANSIENT


def slots(screen: Size) -> int:
    """Rows of a list that can be seen at once."""
    return min(3, screen.height // CELL - 1)


def cell_box(cell: int, screen: Size) -> Box:
    """Pixels of a cell, numbered row by row."""
    row, column = divmod(cell, screen.width // CELL)
    return column * CELL, row * CELL, CELL, CELL


def place(parts: list[Part], screen: Size, rng: random.Random) -> Scene:
    """Put every widget into a cell of its own; what opens later goes into cells that are free at rest.

    Lists take a column: the list above its rows. Two menus may open into the same cells, as only one is open at a time.
    """
    columns, rows = screen.width // CELL, screen.height // CELL
    free = set(range(columns * rows))
    placed: dict[int, Part] = {}
    for i, part in enumerate(parts):
        if part.kind == "list":
            run = _column(free, columns, rows, len(part.slots) + 1, rng)
            free -= set(run)
            boxes = [cell_box(cell, screen) for cell in run]
            placed[i] = replace(part, box=boxes[0], slots=tuple(boxes[1:]))
    resting = [i for i, part in enumerate(parts) if part.parent is None and part.kind != "list"]
    cells = rng.sample(sorted(free), len(resting))
    free -= set(cells)
    for i, cell in zip(resting, cells, strict=True):
        placed[i] = replace(parts[i], box=cell_box(cell, screen))
    for group in opened_together(parts):
        for i, cell in zip(group, rng.sample(sorted(free), len(group)), strict=True):
            placed[i] = replace(parts[i], box=cell_box(cell, screen))
    final = [placed.get(i, part) for i, part in enumerate(parts)]
    return Scene(screen, "roomy", reorder(final, reading_order(final)))


def _column(free: set[int], columns: int, rows: int, height: int, rng: random.Random) -> list[int]:
    runs = []
    for top in range(rows - height + 1):
        for column in range(columns):
            run = [(top + i) * columns + column for i in range(height)]
            if free.issuperset(run):
                runs.append(run)
    return rng.choice(runs)
