"""The free layout: windows with title bars and menu bars, widgets of natural size anywhere in them.

The state machine and the tasks are those of the roomy layout; only the geometry and the look differ. Everything is
measured in points of the built-in 6 x 11 font and multiplied on tall screens, so that text stays readable.
"""

import random
from dataclasses import replace

from flywheel.envs.simulated.draft import opened_together, reading_order, reorder
from flywheel.envs.simulated.scene import Box, Part, Scene, Window
from flywheel.envs.simulated.sprites import CHAR_WIDTH
from flywheel.types import Size

TITLE_BAR = 13
MENU_BAR = 13
ROW = 13
FIELD_TEXT = 5
"""Letters that a field shows."""

_TITLES = ("Notes", "Tools", "Desk")
_GAP = 2
_TRIES = 60


def scale_of(screen: Size) -> int:
    """Pixels a point: 1 up to 719 rows, 2 at 720, 3 at 1080."""
    return max(1, screen.height // 360)


def place(parts: list[Part], needed: int, screen: Size, rng: random.Random) -> Scene | None:
    """Put widgets where there is room; of those after the first `needed` at rest, what does not fit is left out.

    Returns None when a needed widget does not fit; another draw may.
    """
    scale = scale_of(screen)
    points = Size(screen.width // scale, screen.height // scale)
    room = _Room(points, rng)
    placed: dict[int, Part] = {}
    for i, part in enumerate(parts):
        if part.parent is not None:
            continue
        rest = room.put(i, part)
        if rest is not None:
            placed[i] = rest
        elif i < needed:
            return None
    placed |= room.menus(placed)
    for group in opened_together(parts):
        opener = parts[group[0]].parent
        if opener in placed:
            placed |= _open(group, parts, placed[opener], points, rng)
    final = [placed.get(i, part) for i, part in enumerate(parts)]
    kept = [i for i in reading_order(final) if i in placed or (parts[i].kind == "row" and parts[i].parent in placed)]
    return _scaled(Scene(screen, "free", reorder(final, kept), tuple(room.windows)), scale)


class _Room:
    """Windows and what is already taken in them; in points."""

    def __init__(self, size: Size, rng: random.Random) -> None:
        self.rng = rng
        self.windows = _windows(size, rng)
        self._bars: list[list[int]] = [[] for _ in self.windows]
        self._bar_ends = [window.box[0] + 2 for window in self.windows]
        self._taken: list[Box] = []

    def put(self, index: int, part: Part) -> Part | None:
        """The part with a box in some window; None when no window has room."""
        for number in self.rng.sample(range(len(self.windows)), len(self.windows)):
            rest = self._put_menu(index, part, number) if part.kind == "menu" else self._put_widget(part, number)
            if rest is not None:
                return rest
        return None

    def menus(self, placed: dict[int, Part]) -> dict[int, Part]:
        """The menus of each bar in a new order: they came in an order that starts with the goal's."""
        moved = {}
        for window, bar in zip(self.windows, self._bars, strict=True):
            left = window.box[0] + 2
            for index in self.rng.sample(bar, len(bar)):
                wide = natural_size(placed[index])[0]
                moved[index] = replace(placed[index], box=(left, window.box[1] + TITLE_BAR, wide, MENU_BAR))
                left += wide
        return moved

    def _put_menu(self, index: int, part: Part, number: int) -> Part | None:
        left, top, width, _ = self.windows[number].box
        start, wide = self._bar_ends[number], natural_size(part)[0]
        if start + wide > left + width - 2:
            return None
        self._bars[number].append(index)
        self._bar_ends[number] = start + wide
        return replace(part, box=(start, top + TITLE_BAR, wide, MENU_BAR))

    def _put_widget(self, part: Part, number: int) -> Part | None:
        left, top, width, height = self.windows[number].box
        top, height = top + TITLE_BAR + MENU_BAR, height - TITLE_BAR - MENU_BAR
        wide, high = natural_size(part)
        whole = high + ROW * len(part.slots)
        if wide + 2 * _GAP > width or whole + 2 * _GAP > height:
            return None
        for _ in range(_TRIES):
            x = self.rng.randint(left + _GAP, left + width - wide - _GAP)
            y = self.rng.randint(top + _GAP, top + height - whole - _GAP)
            if not any(_touch((x, y, wide, whole), other) for other in self._taken):
                self._taken.append((x, y, wide, whole))
                slots = tuple((x, y + high + ROW * i, wide, ROW) for i in range(len(part.slots)))
                return replace(part, box=(x, y, wide, high), slots=slots)
        return None


def natural_size(part: Part) -> tuple[int, int]:
    """Width and height in points."""
    text = CHAR_WIDTH * len(part.caption)
    match part.kind:
        case "button":
            return text + 8, 17
        case "check":
            return text + 17, 13
        case "field":
            return text + CHAR_WIDTH * FIELD_TEXT + 12, 15
        case "menu":
            return text + 8, MENU_BAR
        case "item":
            return text + 14, ROW
        case "list":
            return CHAR_WIDTH * 5 + 20, ROW
        case _:
            return max(text, 20) + 4, 30


def _windows(size: Size, rng: random.Random) -> list[Window]:
    """One window on a small screen, two or three side by side on a larger one."""
    boxes: list[Box] = [(0, 0, size.width, size.height)]
    if size.width >= 300:
        cut = int(size.width * rng.uniform(0.4, 0.6))
        boxes = [(0, 0, cut, size.height), (cut, 0, size.width - cut, size.height)]
        if size.height >= 220:
            left, top, width, height = boxes.pop(rng.randrange(2))
            cut = int(height * rng.uniform(0.45, 0.55))
            boxes += [(left, top, width, cut), (left, top + cut, width, height - cut)]
    margin = 0 if min(size) < 160 else 4
    windows = []
    for title, (left, top, width, height) in zip(_TITLES, boxes, strict=False):
        right, low = (rng.randint(0, margin) for _ in range(2))
        windows.append(Window(title, (left + right, top + low, width - 2 * right, height - 2 * low)))
    return windows


def _open(group: list[int], parts: list[Part], opener: Part, size: Size, rng: random.Random) -> dict[int, Part]:
    """Boxes of what appears together: a dialog with its answers in a row, or items under a menu or at an icon."""
    if parts[group[0]].kind == "dialog":
        return _dialog(group, parts, size, rng)
    left, top, width, height = opener.box or (0, 0, 0, 0)
    wide = max(natural_size(parts[i])[0] for i in group)
    x, y = (left, top + height) if opener.kind == "menu" else (left + width // 2, top + height // 2)
    x, y = min(x, size.width - wide), min(y, size.height - ROW * len(group))
    return {i: replace(parts[i], box=(x, y + ROW * row, wide, ROW)) for row, i in enumerate(group)}


def _dialog(group: list[int], parts: list[Part], size: Size, rng: random.Random) -> dict[int, Part]:
    frame, *answers = group
    widths = [natural_size(parts[i])[0] for i in answers]
    wide = min(size.width, max(sum(widths) + 4 * (len(widths) + 1), CHAR_WIDTH * len(parts[frame].caption) + 40))
    high = TITLE_BAR + 34
    x = rng.randint(0, size.width - wide)
    y = rng.randint(0, size.height - high)
    boxes = {frame: replace(parts[frame], box=(x, y, wide, high))}
    left = x + (wide - sum(widths) - 4 * (len(widths) - 1)) // 2
    for i, width in zip(answers, widths, strict=True):
        boxes[i] = replace(parts[i], box=(left, y + high - 20, width, 17))
        left += width + 4
    return boxes


def _touch(a: Box, b: Box) -> bool:
    return (
        a[0] < b[0] + b[2] + _GAP
        and b[0] < a[0] + a[2] + _GAP
        and a[1] < b[1] + b[3] + _GAP
        and b[1] < a[1] + a[3] + _GAP
    )


def _scaled(scene: Scene, scale: int) -> Scene:
    def grow(box: Box) -> Box:
        left, top, width, height = (scale * side for side in box)
        return left, top, width, height

    parts = tuple(
        replace(part, box=part.box and grow(part.box), slots=tuple(map(grow, part.slots))) for part in scene.parts
    )
    return replace(scene, parts=parts, windows=tuple(replace(w, box=grow(w.box)) for w in scene.windows))
