"""What film strips and films draw: a turn's screenshot, the mark of its action, a line of words."""

from functools import cache
from importlib.resources import as_file, files

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from flywheel.errors import CorruptTrajectoryError
from flywheel.store.marks import Mark
from flywheel.types import Screenshot

Colour = tuple[int, int, int]

BACKGROUND, NOTHING, INK, DIM = (24, 26, 31), (48, 51, 58), (236, 238, 242), (150, 156, 166)
BAD = (255, 120, 110)
_MARK, _HALO = (255, 45, 85), (255, 255, 255)


def picture_of(trajectory_id: str, number: int, screenshot: Screenshot | None) -> Image.Image | None:
    """A turn's screenshot as RGB, None when it has none. Raises `CorruptTrajectoryError`.

    Args:
        number: of the turn, from 0.
    """
    if screenshot is None:
        return None
    try:
        return screenshot.image()
    except (OSError, ValueError) as error:
        raise CorruptTrajectoryError(
            f"The screenshot of turn {number + 1} of trajectory '{trajectory_id}' is damaged; play it again."
        ) from error


def draw_mark(picture: Image.Image, mark: Mark, scale: float, weight: float = 1.0) -> None:
    """Twice: a wide light halo first, so that it shows on any colour.

    Args:
        scale: of the picture, against the screenshot that the mark is about.
        weight: 1 draws rings of 8 pixels radius.
    """
    draw = ImageDraw.Draw(picture)
    x, y = (value * scale for value in mark.at)
    start = (mark.start[0] * scale, mark.start[1] * scale) if mark.start else (x, y)
    reach = 8 * weight
    for colour, line in ((_HALO, 5), (_MARK, 2)):
        width = max(1, round(line * weight))
        if mark.kind == "ring":
            for circle in range(mark.count):
                radius = reach + 5 * weight * circle
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
        elif mark.kind == "cross":
            draw.line((x - reach, y, x + reach, y), fill=colour, width=width)
            draw.line((x, y - reach, x, y + reach), fill=colour, width=width)
        else:
            draw.line((*start, x, y), fill=colour, width=width)
            _draw_arrow_head(draw, start, (x, y), colour, width, 11 * weight)
    dot = 2 * weight
    draw.ellipse((x - dot, y - dot, x + dot, y + dot), fill=_MARK)


def angle(start: tuple[float, float], end: tuple[float, float]) -> float:
    """Direction of an arrow in radians, clockwise from the right as y points down."""
    return float(np.arctan2(end[1] - start[1], end[0] - start[0]))


def draw_words(
    draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int, colour: Colour, size: int
) -> None:
    """One line of `size` pixels, cut with an ellipsis where it would leave `width` pixels."""
    font = _font(size)
    text = " ".join(text[: 4 * width].split())
    if draw.textlength(text, font) > width:
        while text and draw.textlength(text + "…", font) > width:
            text = text[:-1]
        text += "…"
    draw.text(at, text, font=font, fill=colour)


def _draw_arrow_head(
    draw: ImageDraw.ImageDraw,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: Colour,
    width: int,
    length: float,
) -> None:
    along = angle(start, end)
    for turn in (2.6, -2.6):
        tip = (end[0] + length * np.cos(along + turn), end[1] + length * np.sin(along + turn))
        draw.line((*end, *tip), fill=colour, width=width)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, from matplotlib's own files: Pillow's built-in font has no accents."""
    folder = files("matplotlib") / "mpl-data" / "fonts" / "ttf"
    with as_file(folder / "DejaVuSans.ttf") as path:
        return ImageFont.truetype(path, size)
