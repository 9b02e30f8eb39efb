"""Set-of-marks: numbered boxes around what can be acted on, drawn on the screenshot.

Source: arXiv:2310.11441 (Set-of-Mark prompting), as OSWorld's `som` observation has it.
"""

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw

from .accessibility import Node

_COLOURS = ("#d00000", "#0050d0", "#007a20", "#8000a0", "#b05000", "#006a7a")


def draw_marks(image: Image.Image, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Draw on `image` in place; the legend: `{"mark", "tag", "name", "text", "x", "y", "width", "height"}`, from 1."""
    pen = ImageDraw.Draw(image)
    legend = []
    for number, node in enumerate(nodes, 1):
        colour = _COLOURS[number % len(_COLOURS)]
        left, top = max(0, node.x), max(0, node.y)
        right = min(image.width, node.x + node.width) - 1
        bottom = min(image.height, node.y + node.height) - 1
        pen.rectangle((left, top, right, bottom), outline=colour)
        plate = pen.textbbox((left + 1, top), str(number))
        pen.rectangle((plate[0] - 1, plate[1] - 1, plate[2] + 1, plate[3] + 1), fill=colour)
        pen.text((left + 1, top), str(number), fill="white")
        place = {"x": node.x, "y": node.y, "width": node.width, "height": node.height}
        legend.append({"mark": number, "tag": node.tag, "name": node.name, "text": node.text[:200], **place})
    return legend
