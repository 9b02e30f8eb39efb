"""Pictures of widgets, drawn once with PIL and kept as arrays.

Roomy: a 32 x 32 cell with the kind's glyph and state in the upper half and the caption in the lower half, so that the
caption's pixels depend on the word alone. Free: widgets of natural size in an ordinary desktop look.
"""

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from flywheel.envs.simulated.scene import CELL

CHAR_WIDTH = 6
CHAR_HEIGHT = 11
"""PIL's built-in bitmap font has one size: 6 x 11 px a letter."""

Colour = tuple[int, int, int]

DESKTOP: Colour = (224, 228, 232)
INK: Colour = (16, 16, 24)
WHITE: Colour = (255, 255, 255)
FOCUS: Colour = (255, 128, 0)

COLOURS: dict[str, Colour] = {
    "button": (40, 96, 220),
    "check": (16, 140, 60),
    "field": (90, 90, 100),
    "menu": (130, 50, 180),
    "item": (220, 60, 170),
    "dialog": (170, 20, 30),
    "list": (0, 130, 140),
    "row": (80, 200, 210),
    "icon": (230, 170, 20),
    "bin": (120, 80, 40),
}


@lru_cache(maxsize=1)
def _font() -> ImageFont.ImageFont:
    return ImageFont.load_default_imagefont()


def write(draw: ImageDraw.ImageDraw, left: int, top: int, text: str, fill: Colour = INK) -> None:
    """Text in PIL's bitmap font, the same pixels on every machine; letters that it lacks become question marks."""
    draw.text((left, top), text.encode("latin-1", "replace").decode("latin-1"), fill=fill, font=_font())


@lru_cache(maxsize=8192)
def cell_sprite(kind: str, caption: str, state: str, text: str) -> np.ndarray:
    """One cell of the roomy layout: uint8, shape (32, 32, 3), read-only."""
    image = Image.new("RGB", (CELL, CELL), DESKTOP)
    draw = ImageDraw.Draw(image)
    _GLYPHS[kind](draw, COLOURS[kind], state, text)
    if "focused" in state or "selected" in state:
        draw.rectangle((0, 0, CELL - 1, 15), outline=FOCUS)
    write(draw, 1, 18, caption)
    return _frozen(image)


def _button(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.rounded_rectangle((2, 2, 29, 13), 4, fill=colour)


def _check(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.rectangle((10, 2, 21, 13), fill=colour if "checked" in state else WHITE, outline=colour, width=2)
    if "checked" in state:
        draw.line((12, 8, 15, 11, 19, 4), fill=WHITE, width=2)


def _field(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.rectangle((0, 1, 31, 14), fill=WHITE, outline=colour)
    selected = "selected" in state
    if selected:
        draw.rectangle((1, 2, 30, 13), fill=INK)
    write(draw, 1, 2, text[-5:], WHITE if selected else INK)
    if "focused" in state and not text:
        draw.line((3, 4, 3, 11), fill=INK)


def _menu(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    if state == "open":
        draw.rectangle((4, 1, 27, 14), fill=colour)
    for top in (2, 7, 12):
        draw.rectangle((6, top, 25, top + 1), fill=WHITE if state == "open" else colour)


def _item(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.polygon(((9, 2), (9, 13), (23, 8)), fill=colour)


def _dialog(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.ellipse((9, 1, 22, 14), fill=colour)
    draw.line((16, 4, 16, 8), fill=WHITE, width=2)
    draw.point((16, 11), fill=WHITE)


def _list(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.rectangle((2, 1, 29, 14), outline=colour, width=2)
    draw.polygon(((10, 6), (21, 6), (16, 12)), fill=colour)


def _row(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.rectangle((1, 5, 30, 11), fill=colour)


def _icon(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.polygon(((16, 1), (24, 8), (16, 15), (8, 8)), fill=colour)
    if state == "open":
        draw.polygon(((16, 5), (20, 8), (16, 11), (12, 8)), fill=WHITE)


def _bin(draw: ImageDraw.ImageDraw, colour: Colour, state: str, text: str) -> None:
    draw.polygon(((6, 3), (25, 3), (21, 14), (10, 14)), fill=colour)
    draw.rectangle((4, 1, 27, 2), fill=INK)


_GLYPHS = {
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


def _frozen(image: Image.Image) -> np.ndarray:
    pixels = np.array(image)
    pixels.setflags(write=False)
    return pixels
