"""The roomy layout: a grid of 32 x 32 px cells with at most one widget each."""

import random
from dataclasses import replace

from flywheel.envs.simulated.draft import reorder
from flywheel.envs.simulated.scene import CELL, Box, Part, Scene
from flywheel.types import Size


def cell_box(cell: int, screen: Size) -> Box:
    """Pixels of a cell, numbered row by row."""
    row, column = divmod(cell, screen.width // CELL)
    return column * CELL, row * CELL, CELL, CELL


def place(parts: list[Part], screen: Size, slots: int, rng: random.Random) -> Scene:
    """Put every widget into a cell of its own; what opens later goes into cells that are free at rest.

    Lists take a column: the list above its rows. Two menus may open into the same cells, as only one is open at a time.
    """
    columns, rows = screen.width // CELL, screen.height // CELL
    free = set(range(columns * rows))
    placed: dict[int, Part] = {}
    for i, part in enumerate(parts):
        if part.kind == "list":
            run = _column(free, columns, rows, slots + 1, rng)
            free -= set(run)
            boxes = [cell_box(cell, screen) for cell in run]
            placed[i] = replace(part, box=boxes[0], slots=tuple(boxes[1:]))
    resting = [i for i, part in enumerate(parts) if part.parent is None and part.kind != "list"]
    cells = rng.sample(sorted(free), len(resting))
    free -= set(cells)
    for i, cell in zip(resting, cells, strict=True):
        placed[i] = replace(parts[i], box=cell_box(cell, screen))
    for group in _opened_together(parts):
        for i, cell in zip(group, rng.sample(sorted(free), len(group)), strict=True):
            placed[i] = replace(parts[i], box=cell_box(cell, screen))
    final = [placed.get(i, part) for i, part in enumerate(parts)]
    return Scene(screen, "roomy", reorder(final, _reading_order(final)))


def _column(free: set[int], columns: int, rows: int, height: int, rng: random.Random) -> list[int]:
    runs = []
    for top in range(rows - height + 1):
        for column in range(columns):
            run = [(top + i) * columns + column for i in range(height)]
            if free.issuperset(run):
                runs.append(run)
    return rng.choice(runs)


def _opened_together(parts: list[Part]) -> list[list[int]]:
    """Groups of parts that appear together: the items of one menu or icon; a dialog with its answers."""
    groups: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        if part.parent is None or part.kind == "row":
            continue
        opener = i if part.kind == "dialog" else part.parent
        groups.setdefault(opener, []).append(i)
    return list(groups.values())


def _reading_order(parts: list[Part]) -> list[int]:
    """At rest first, row by row, so that the order tells nothing about the goal; rows keep theirs."""
    resting = [i for i, part in enumerate(parts) if part.parent is None]
    resting.sort(key=lambda i: (parts[i].box or (0, 0))[1::-1])
    return resting + [i for i, part in enumerate(parts) if part.parent is not None]
