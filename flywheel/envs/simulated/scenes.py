"""Random screens of the roomy layout with their widgets, for grounding pre-training."""

import numpy as np

from flywheel.envs.simulated.render import Widget
from flywheel.envs.simulated.roomy import cell_box
from flywheel.envs.simulated.scene import CELL
from flywheel.envs.simulated.sprites import DESKTOP, cell_sprite
from flywheel.envs.simulated.vocabulary import CAPTIONS, KINDS, TYPED
from flywheel.types import Size

_STATES = {
    "button": ("plain", "focused"),
    "check": ("plain", "checked", "focused", "checked focused"),
    "field": ("plain", "filled", "focused", "filled focused", "filled selected"),
    "menu": ("plain", "open"),
    "row": ("plain", "focused"),
    "icon": ("plain", "focused", "open"),
}
"""States that a kind can have; the others are always plain."""


def random_scene(rng: np.random.Generator, screen: Size, widgets: tuple[int, int]) -> tuple[np.ndarray, list[Widget]]:
    """A screen with `widgets` = (least, most) random widgets in random cells, captions all different.

    Returns uint8 pixels, shape (height, width, 3), and the widgets. At most one a cell and one a caption, so 24.
    """
    cells = (screen.width // CELL) * (screen.height // CELL)
    most = min(widgets[1], cells, len(CAPTIONS))
    count = int(rng.integers(min(widgets[0], most), most + 1))
    pixels = np.empty((screen.height, screen.width, 3), np.uint8)
    pixels[:] = DESKTOP
    shown = []
    places = rng.permutation(cells)[:count].tolist()
    captions = rng.permutation(len(CAPTIONS))[:count].tolist()
    kinds = rng.integers(len(KINDS), size=count).tolist()
    draws = rng.random((count, 2)).tolist()
    for cell, caption, kind, (state, text) in zip(places, captions, kinds, draws, strict=True):
        widget = _widget(cell_box(cell, screen), cell, KINDS[kind], CAPTIONS[caption], state, text)
        left, top = widget.left, widget.top
        sprite = cell_sprite(widget.kind, widget.caption, widget.state, widget.text)
        pixels[top : top + CELL, left : left + CELL] = sprite
        shown.append(widget)
    return pixels, shown


def _widget(
    box: tuple[int, int, int, int], cell: int, kind: str, caption: str, state_draw: float, text_draw: float
) -> Widget:
    states = _STATES.get(kind, ("plain",))
    state = states[int(state_draw * len(states))]
    text = TYPED[int(text_draw * len(TYPED))] if "filled" in state else ""
    return Widget(kind, caption, state, *box, cell, text)
