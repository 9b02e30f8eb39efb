"""From widgets to pixels, redrawing only what changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.envs.simulated import free_sprites
from flywheel.envs.simulated.free import scale_of
from flywheel.envs.simulated.scene import CELL, Box, Scene
from flywheel.envs.simulated.sprites import DESKTOP, cell_sprite
from flywheel.types import Screenshot, Size


@dataclass(frozen=True, slots=True)
class Widget:
    """A widget as it can be seen now; pixels. `cell` is the 32 x 32 cell of its centre, row by row; `state` is one of
    `vocabulary.STATES`, `text` what a field holds, `index` its number in the scene."""

    kind: str
    caption: str
    state: str
    left: int
    top: int
    width: int
    height: int
    cell: int
    text: str = ""
    index: int = -1

    @property
    def box(self) -> Box:
        return self.left, self.top, self.width, self.height

    @property
    def center(self) -> tuple[int, int]:
        return self.left + self.width // 2, self.top + self.height // 2


def cell_of(box: Box, screen: Size) -> int:
    """The cell of a box's centre; what lies right of the last whole column belongs to that column."""
    left, top, width, height = box
    columns = screen.width // CELL
    return (top + height // 2) // CELL * columns + min((left + width // 2) // CELL, columns - 1)


class Renderer:
    """Keeps the last picture. While the same boxes are shown, drawing starts at the first widget that looks
    different, as later ones may cover it; when boxes come or go, the picture is composed anew."""

    def __init__(self, scene: Scene) -> None:
        self._roomy = scene.layout == "roomy"
        self._scale = scale_of(scene.screen)
        self._background = _background(scene)
        self._pixels = self._background.copy()
        self._drawn: list[Widget] = []
        self._screenshot: Screenshot | None = None

    def screenshot(self, widgets: Sequence[Widget]) -> Screenshot:
        """Raw RGB; the very same object as before when nothing changed."""
        wanted = list(widgets)
        if self._screenshot is not None and wanted == self._drawn:
            return self._screenshot
        self._draw(wanted, self._first_change(wanted))
        self._drawn = wanted
        self._screenshot = None  # freed before the next is made: at 1280 x 720 fresh pages cost more than drawing
        self._screenshot = Screenshot.from_array(self._pixels)
        return self._screenshot

    def _first_change(self, wanted: list[Widget]) -> int:
        """Number of widgets that can stay as they are drawn."""
        if [widget.box for widget in wanted] == [widget.box for widget in self._drawn]:
            pairs = enumerate(zip(wanted, self._drawn, strict=True))
            return next((i for i, (new, old) in pairs if new != old), len(wanted))
        self._pixels[:] = self._background
        return 0

    def _draw(self, widgets: list[Widget], start: int) -> None:
        for widget in widgets[start:]:
            left, top, width, height = widget.box
            look = (widget.kind, widget.caption, widget.state, widget.text)
            if self._roomy:
                sprite = cell_sprite(*look)
            else:
                sprite = free_sprites.widget_sprite(*look, width, height, self._scale)
            self._pixels[top : top + height, left : left + width] = sprite


def _background(scene: Scene) -> np.ndarray:
    if scene.layout == "free":
        return free_sprites.desk(scene)
    pixels = np.empty((scene.screen.height, scene.screen.width, 3), np.uint8)
    pixels[:] = DESKTOP
    return pixels
