"""Trajectories to look at: a page with everything, and a small picture.

Neither needs the store: both take a trajectory. The page is one file without scripts, fonts or links, so that it can be
mailed or kept beside a report.
"""

import base64
import io
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image, ImageDraw

from flywheel.store.codec import action_type
from flywheel.store.drawing import BACKGROUND, BAD, DIM, INK, NOTHING, angle, draw_mark, draw_words, picture_of
from flywheel.store.marks import Mark, caption, marks
from flywheel.types import Trajectory, Turn

_CELL_HEIGHT = 180
_CAPTION_HEIGHT = 18
_FONT_SIZE = 11
_GAP = 6


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
        "angle": np.degrees(angle(mark.start, mark.at)) if mark and mark.start else 0,
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
    strip = Image.new("RGB", (width, _CELL_HEIGHT + 2 * _CAPTION_HEIGHT + 3 * _GAP), BACKGROUND)
    draw = ImageDraw.Draw(strip)
    title = f"{verdict(trajectory)} · {trajectory.task.instruction}"
    draw_words(draw, (_GAP, _GAP), title, width - 2 * _GAP, INK if trajectory.success else BAD, _FONT_SIZE)
    x = _GAP
    for cell in cells:
        strip.paste(cell, (x, _CAPTION_HEIGHT + 2 * _GAP))
        x += cell.width + _GAP
    out = io.BytesIO()
    strip.save(out, "PNG", optimize=True)
    return out.getvalue()


def _cell(trajectory_id: str, number: int, turn: Turn, mark: Mark | None) -> Image.Image:
    """One screenshot with its action and, below, the action in words."""
    picture = picture_of(trajectory_id, number, turn.observation.screenshot)
    if picture is None:
        picture = Image.new("RGB", (_CELL_HEIGHT, _CELL_HEIGHT), NOTHING)
    scale = _CELL_HEIGHT / picture.height
    size = (max(1, round(picture.width * scale)), _CELL_HEIGHT)
    picture = picture.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC)
    if mark is not None:
        draw_mark(picture, mark, scale)
    cell = Image.new("RGB", (picture.width, _CELL_HEIGHT + _CAPTION_HEIGHT), BACKGROUND)
    cell.paste(picture, (0, 0))
    words = f"{number + 1}  {caption(turn.action)}"
    colour = BAD if turn.error else DIM
    draw_words(ImageDraw.Draw(cell), (1, _CELL_HEIGHT + 3), words, cell.width - 2, colour, _FONT_SIZE)
    return cell
