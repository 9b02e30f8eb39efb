"""From widgets to pixels, redrawing only what changed."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from flywheel.envs.simulated.scene import Box, Scene
from flywheel.envs.simulated.sprites import DESKTOP, cell_sprite
from flywheel.types import Screenshot


class Drawable(Protocol):
    """What the renderer needs of a widget."""

    @property
    def kind(self) -> str: ...
    @property
    def caption(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def left(self) -> int: ...
    @property
    def top(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


class Renderer:
    """Keeps the last picture. While the same boxes are shown, only widgets that look different are drawn again;
    when boxes come or go, the picture is composed anew from the background."""

    def __init__(self, scene: Scene) -> None:
        self._layout = scene.layout
        self._background = background(scene)
        self._pixels = self._background.copy()
        self._drawn: list[tuple[Box, tuple[str, str, str, str]]] = []
        self._screenshot: Screenshot | None = None

    def screenshot(self, widgets: Sequence[Drawable]) -> Screenshot:
        """Raw RGB; the very same object as before when nothing changed."""
        wanted = [((w.left, w.top, w.width, w.height), (w.kind, w.caption, w.state, w.text)) for w in widgets]
        if self._screenshot is not None and wanted == self._drawn:
            return self._screenshot
        changed = wanted
        if [box for box, _ in wanted] == [box for box, _ in self._drawn] and self._layout == "roomy":
            changed = [new for new, old in zip(wanted, self._drawn, strict=True) if new != old]
        else:
            self._pixels[:] = self._background
        for (left, top, width, height), look in changed:
            self._pixels[top : top + height, left : left + width] = cell_sprite(*look)
        self._drawn = wanted
        self._screenshot = Screenshot.from_array(self._pixels)
        return self._screenshot


def background(scene: Scene) -> np.ndarray:
    """The desktop without its widgets: uint8, shape (height, width, 3)."""
    pixels = np.empty((scene.screen.height, scene.screen.width, 3), np.uint8)
    pixels[:] = DESKTOP
    return pixels
