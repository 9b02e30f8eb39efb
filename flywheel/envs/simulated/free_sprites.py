"""The look of the free layout: widgets of natural size, windows and their title bars."""

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from flywheel.envs.simulated.free import MENU_BAR, TITLE_BAR, scale_of
from flywheel.envs.simulated.scene import Scene
from flywheel.envs.simulated.sprites import CHAR_HEIGHT, CHAR_WIDTH, INK, WHITE, Colour, write

WALLPAPER: Colour = (58, 110, 130)
FACE: Colour = (236, 236, 238)
EDGE: Colour = (140, 142, 150)
RAISED: Colour = (214, 218, 226)
TITLE: Colour = (52, 72, 130)
DIALOG_TITLE: Colour = (150, 40, 48)
ACCENT: Colour = (30, 110, 230)
HIGHLIGHT: Colour = (190, 214, 250)
PAPER: Colour = (250, 214, 110)

Draw = ImageDraw.ImageDraw

_LEAST = 16
"""Points; smaller widgets, which only hand-made tasks have, are drawn this large and cut."""


@lru_cache(maxsize=8192)
def widget_sprite(kind: str, caption: str, state: str, text: str, width: int, height: int, scale: int) -> np.ndarray:
    """uint8, shape (height, width, 3), read-only; width and height in pixels, `scale` pixels a point."""
    wide, high = max(-(-width // scale), _LEAST), max(-(-height // scale), _LEAST)
    image = Image.new("RGB", (wide, high), FACE)
    _DRAW[kind](ImageDraw.Draw(image), wide, high, caption, state, text)
    pixels = np.array(image).repeat(scale, 0).repeat(scale, 1)[:height, :width]
    pixels.setflags(write=False)
    return pixels


def desk(scene: Scene) -> np.ndarray:
    """Wallpaper and windows without widgets: uint8, shape (height, width, 3)."""
    scale = scale_of(scene.screen)
    width, height = -(-scene.screen.width // scale), -(-scene.screen.height // scale)
    image = Image.new("RGB", (width, height), WALLPAPER)
    draw = ImageDraw.Draw(image)
    for window in scene.windows:
        left, top, wide, high = (-(-side // scale) for side in window.box)
        draw.rectangle((left, top, left + wide - 1, top + high - 1), fill=FACE, outline=EDGE)
        draw.rectangle((left, top, left + wide - 1, top + TITLE_BAR - 1), fill=TITLE)
        write(draw, left + 3, top + 1, window.title, WHITE)
        _close_cross(draw, left + wide - 11, top + 3)
        bar = top + TITLE_BAR + MENU_BAR - 1
        draw.line((left, bar, left + wide - 1, bar), fill=EDGE)
    pixels = np.array(image).repeat(scale, 0).repeat(scale, 1)
    return pixels[: scene.screen.height, : scene.screen.width]


def _close_cross(draw: Draw, left: int, top: int) -> None:
    draw.line((left, top, left + 6, top + 6), fill=WHITE)
    draw.line((left, top + 6, left + 6, top), fill=WHITE)


def _button(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    edge = ACCENT if "focused" in state else EDGE
    draw.rounded_rectangle((0, 0, wide - 1, high - 1), 3, fill=RAISED, outline=edge)
    write(draw, (wide - CHAR_WIDTH * len(caption)) // 2, (high - CHAR_HEIGHT) // 2, caption)


def _check(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    edge = ACCENT if "focused" in state else INK
    draw.rectangle((1, 1, 11, 11), fill=WHITE, outline=edge)
    if "checked" in state:
        draw.line((3, 6, 5, 9, 9, 3), fill=INK, width=2)
    write(draw, 15, 1, caption)


def _field(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    selected = "selected" in state
    focused = selected or "focused" in state
    left = max(0, min(CHAR_WIDTH * len(caption) + 4, wide - _LEAST))
    write(draw, 1, 2, caption)
    draw.rectangle((left, 0, wide - 1, high - 1), fill=WHITE, outline=ACCENT if focused else EDGE)
    shown = text[-max(1, (wide - left - 6) // CHAR_WIDTH) :]
    if selected:
        draw.rectangle((left + 2, 2, left + 3 + CHAR_WIDTH * len(shown), high - 3), fill=ACCENT)
    write(draw, left + 3, 2, shown, WHITE if selected else INK)
    if focused:
        caret = left + 3 + CHAR_WIDTH * len(shown)
        draw.line((caret, 3, caret, high - 4), fill=ACCENT)


def _menu(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    is_open = state == "open"
    if is_open:
        draw.rectangle((0, 0, wide - 1, high - 1), fill=ACCENT)
    draw.line((0, high - 1, wide - 1, high - 1), fill=EDGE)
    write(draw, 4, 1, caption, WHITE if is_open else INK)


def _item(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    draw.rectangle((0, 0, wide - 1, high - 1), fill=WHITE, outline=RAISED)
    draw.line((0, 0, 0, high - 1), fill=EDGE)
    draw.line((wide - 1, 0, wide - 1, high - 1), fill=EDGE)
    write(draw, 8, 1, caption)


def _dialog(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    draw.rectangle((0, 0, wide - 1, high - 1), fill=FACE, outline=INK)
    draw.rectangle((0, 0, wide - 1, TITLE_BAR - 1), fill=DIALOG_TITLE)
    write(draw, 3, 1, caption, WHITE)


def _list(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    draw.rectangle((0, 0, wide - 1, high - 1), fill=RAISED, outline=EDGE)
    write(draw, 3, 1, caption)
    draw.polygon(((wide - 13, 5), (wide - 5, 5), (wide - 9, 9)), fill=INK)


def _row(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    draw.rectangle((0, 0, wide - 1, high - 1), fill=HIGHLIGHT if state == "focused" else WHITE)
    draw.line((0, 0, 0, high - 1), fill=EDGE)
    draw.line((wide - 1, 0, wide - 1, high - 1), fill=EDGE)
    draw.line((0, high - 1, wide - 1, high - 1), fill=RAISED)
    write(draw, 3, 1, caption)


def _icon(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    middle = wide // 2
    fill = ACCENT if state == "open" else HIGHLIGHT if state == "focused" else PAPER
    draw.polygon(
        ((middle - 6, 1), (middle + 3, 1), (middle + 6, 4), (middle + 6, 17), (middle - 6, 17)), fill=fill, outline=INK
    )
    write(draw, (wide - CHAR_WIDTH * len(caption)) // 2, 18, caption)


def _bin(draw: Draw, wide: int, high: int, caption: str, state: str, text: str) -> None:
    middle = wide // 2
    draw.rectangle((middle - 8, 2, middle + 7, 4), fill=INK)
    draw.polygon(((middle - 7, 6), (middle + 6, 6), (middle + 4, 17), (middle - 5, 17)), fill=RAISED, outline=INK)
    write(draw, (wide - CHAR_WIDTH * len(caption)) // 2, 18, caption)


_DRAW = {
    "button": _button,
    "check": _check,
    "field": _field,
    "menu": _menu,
    "item": _item,
    "dialog": _dialog,
    "list": _list,
    "row": _row,
    "icon": _icon,
    "bin": _bin,
}
