"""Trajectories to look at: a page with everything, and a small picture.

Neither needs the store: both take a trajectory. The page is one file without scripts, fonts or links, so that it can be
mailed or kept beside a report.
"""

import base64
import io
from functools import cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image, ImageDraw, ImageFont

from flywheel.errors import CorruptTrajectoryError
from flywheel.store.codec import action_type
from flywheel.store.marks import Mark, caption, marks
from flywheel.types import Screenshot, Trajectory, Turn

_CELL_HEIGHT = 180
_CAPTION_HEIGHT = 18
_GAP = 6
_BACKGROUND, _INK, _DIM = (24, 26, 31), (236, 238, 242), (150, 156, 166)
_MARK, _HALO, _BAD = (255, 45, 85), (255, 255, 255), (255, 120, 110)


def render_trajectory(trajectory: Trajectory) -> str:
    """A self-contained HTML page: what was asked, what came of it, and every turn with its action drawn in."""
    environment = Environment(
        loader=PackageLoader("flywheel.store"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    turns = [
        _turn_fields(number, turn, mark)
        for number, (turn, mark) in enumerate(zip(trajectory.turns, marks(trajectory.turns), strict=True), 1)
    ]
    return environment.get_template("trajectory.html.jinja").render(
        t=trajectory, verdict=verdict(trajectory), good=trajectory.success, turns=turns
    )


def verdict(trajectory: Trajectory) -> str:
    """What came of it, in a word or two."""
    if trajectory.outcome == "failed":
        return f"failed ({trajectory.failure})" if trajectory.failure else "failed"
    if trajectory.task_reward is None:
        return "not judged"
    return "success" if trajectory.success else "no success"


def _turn_fields(number: int, turn: Turn, mark: Mark | None) -> dict[str, Any]:
    screenshot = turn.observation.screenshot
    encoded = screenshot.encode() if screenshot else None
    return {
        "number": number,
        "turn": turn,
        "type": action_type(turn.action) if turn.action else "none",
        "caption": caption(turn.action),
        "mark": mark,
        "image": encoded and f"data:image/{encoded.codec};base64,{base64.b64encode(encoded.data).decode()}",
        "radius": max(screenshot.size) / 45 if screenshot else 0,
        "angle": np.degrees(_angle(mark.start, mark.at)) if mark and mark.start else 0,
        "mean_logprob": float(np.mean(turn.logprobs)) if turn.logprobs else None,
    }


def film_strip_png(trajectory: Trajectory, max_turns: int = 6) -> bytes:
    """A PNG with up to `max_turns` turns side by side, the first and the last among them, actions drawn in.

    Raises `CorruptTrajectoryError` when a screenshot cannot be decoded.
    """
    turns = list(zip(trajectory.turns, marks(trajectory.turns), strict=True))
    chosen = sorted({round(n) for n in np.linspace(0, len(turns) - 1, min(max_turns, len(turns)))})
    cells = [_cell(trajectory.id, number, *turns[number]) for number in chosen]
    width = max(sum(cell.width + _GAP for cell in cells) + _GAP, 480)
    strip = Image.new("RGB", (width, _CELL_HEIGHT + 2 * _CAPTION_HEIGHT + 3 * _GAP), _BACKGROUND)
    draw = ImageDraw.Draw(strip)
    title = f"{verdict(trajectory)} · {trajectory.task.instruction}"
    _text(draw, (_GAP, _GAP), title, width - 2 * _GAP, _INK if trajectory.success else _BAD)
    x = _GAP
    for cell in cells:
        strip.paste(cell, (x, _CAPTION_HEIGHT + 2 * _GAP))
        x += cell.width + _GAP
    out = io.BytesIO()
    strip.save(out, "PNG", optimize=True)
    return out.getvalue()


def _cell(trajectory_id: str, number: int, turn: Turn, mark: Mark | None) -> Image.Image:
    """One screenshot with its action and, below, the action in words."""
    picture = _picture(trajectory_id, number, turn.observation.screenshot)
    scale = _CELL_HEIGHT / picture.height
    size = (max(1, round(picture.width * scale)), _CELL_HEIGHT)
    picture = picture.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC)
    if mark is not None:
        _draw_mark(picture, mark, scale)
    cell = Image.new("RGB", (picture.width, _CELL_HEIGHT + _CAPTION_HEIGHT), _BACKGROUND)
    cell.paste(picture, (0, 0))
    words = f"{number + 1}  {caption(turn.action)}"
    _text(ImageDraw.Draw(cell), (1, _CELL_HEIGHT + 3), words, cell.width - 2, _BAD if turn.error else _DIM)
    return cell


def _picture(trajectory_id: str, number: int, screenshot: Screenshot | None) -> Image.Image:
    if screenshot is None:
        return Image.new("RGB", (_CELL_HEIGHT, _CELL_HEIGHT), (48, 51, 58))
    try:
        return screenshot.image()
    except (OSError, ValueError) as error:
        raise CorruptTrajectoryError(
            f"The screenshot of turn {number + 1} of trajectory '{trajectory_id}' is damaged; play it again."
        ) from error


def _draw_mark(picture: Image.Image, mark: Mark, scale: float) -> None:
    """Twice: a wide light halo first, so that it shows on any colour."""
    draw = ImageDraw.Draw(picture)
    x, y = (value * scale for value in mark.at)
    start = tuple(value * scale for value in mark.start) if mark.start else (x, y)
    for colour, width in ((_HALO, 5), (_MARK, 2)):
        if mark.kind == "ring":
            for radius in range(8, 8 + 5 * mark.count, 5):
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
        elif mark.kind == "cross":
            draw.line((x - 8, y, x + 8, y), fill=colour, width=width)
            draw.line((x, y - 8, x, y + 8), fill=colour, width=width)
        else:
            draw.line((*start, x, y), fill=colour, width=width)
            _draw_arrow_head(draw, start, (x, y), colour, width)
    draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_MARK)


def _draw_arrow_head(
    draw: ImageDraw.ImageDraw, start: tuple[float, ...], end: tuple[float, float], colour: tuple[int, ...], width: int
) -> None:
    angle = _angle(start, end)
    for turn in (2.6, -2.6):
        draw.line(
            (*end, end[0] + 11 * np.cos(angle + turn), end[1] + 11 * np.sin(angle + turn)), fill=colour, width=width
        )


def _angle(start: tuple[float, ...], end: tuple[float, ...]) -> float:
    """Direction of an arrow in radians, clockwise from the right as y points down."""
    return float(np.arctan2(end[1] - start[1], end[0] - start[0]))


@cache
def _font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, from matplotlib's own files: Pillow's built-in font has no accents."""
    folder = files("matplotlib") / "mpl-data" / "fonts" / "ttf"
    with as_file(folder / "DejaVuSans.ttf") as path:
        return ImageFont.truetype(path, 11)


def _text(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int, colour: tuple[int, ...]) -> None:
    """One line, cut with an ellipsis where it would leave `width` pixels."""
    font = _font()
    text = " ".join(text.split())
    if draw.textlength(text, font) > width:
        while text and draw.textlength(text + "…", font) > width:
            text = text[:-1]
        text += "…"
    draw.text(at, text, font=font, fill=colour)
