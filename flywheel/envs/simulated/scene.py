"""A desktop as data: what a task file carries and what the desktop starts from.

Geometry is stored, never recomputed: a task file replays on any version of the layout code. Boxes are
(left, top, width, height) in screen pixels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.envs.simulated.vocabulary import KINDS
from flywheel.errors import ConfigError, TaskError
from flywheel.types import Size

CELL = 32
"""Side of a cell of the roomy layout, pixels; one merged token of a patch-16, merge-2 vision tower."""
MIN_SIDE = 96
MAX_SIDE = 7680

Box = tuple[int, int, int, int]

LAYOUTS = ("roomy", "free")

_PARENTS = {
    "item": ("menu", "icon"),
    "row": ("list",),
    "dialog": ("button",),
    "button": (None, "dialog"),
}


def refuse_desktop(screen: Size, layout: str) -> None:
    """Raises `ConfigError` for a screen that nothing fits on, or a layout that there is not."""
    if min(screen) < MIN_SIDE:
        raise ConfigError(f"A screen of {screen[0]} x {screen[1]} is too small; take at least {MIN_SIDE} x {MIN_SIDE}.")
    if layout not in LAYOUTS:
        raise ConfigError(f"There is no layout '{layout}'; take {' or '.join(LAYOUTS)}.")


@dataclass(frozen=True, slots=True)
class Part:
    """One widget of a scene.

    `parent` is the index of the part that shows this one: the menu or icon of an item, the list of a row, the button
    that opens a dialog, the dialog of an answer. Rows have no box of their own: they stand in the `slots` of their
    list. A button that `submits` hands every field and check box to its application.
    """

    kind: str
    caption: str
    box: Box | None = None
    parent: int | None = None
    checked: bool = False
    text: str = ""
    slots: tuple[Box, ...] = ()
    submits: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Decoration of the free layout: a frame with a title bar behind some widgets."""

    title: str
    box: Box


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole initial desktop. Parts are drawn in order, later ones on top."""

    screen: Size
    layout: str
    parts: tuple[Part, ...]
    windows: tuple[Window, ...] = ()

    def children(self, index: int) -> list[int]:
        """Indices of the parts that `index` shows."""
        return [i for i, part in enumerate(self.parts) if part.parent == index]


def scene_to_json(scene: Scene) -> dict[str, Any]:
    """The `parameters` of a `simulated_desktop` set-up step."""
    return {
        "screen": list(scene.screen),
        "layout": scene.layout,
        "windows": [{"title": window.title, "box": list(window.box)} for window in scene.windows],
        "widgets": [_part_to_json(part) for part in scene.parts],
    }


def _part_to_json(part: Part) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": part.kind, "caption": part.caption}
    if part.box is not None:
        data["box"] = list(part.box)
    if part.parent is not None:
        data["parent"] = part.parent
    if part.kind == "check":
        data["checked"] = part.checked
    if part.kind == "field":
        data["text"] = part.text
    if part.slots:
        data["slots"] = [list(slot) for slot in part.slots]
    if part.submits:
        data["submits"] = True
    return data


def scene_from_json(data: Mapping[str, Any]) -> Scene:
    """Read `parameters` back; raises `TaskError` with one sentence that names the widget and what it lacks."""
    for key in ("screen", "layout", "widgets"):
        if key not in data:
            raise TaskError(f"The simulated desktop has no '{key}'; its parameters need screen, layout and widgets.")
    screen = _read_screen(data["screen"])
    if data["layout"] not in LAYOUTS:
        raise TaskError(f"The simulated desktop has layout {data['layout']!r}; write 'roomy' or 'free'.")
    if not isinstance(data["widgets"], list | tuple):
        raise TaskError("The simulated desktop's 'widgets' is not a list.")
    parts = tuple(_read_part(widget, f"Widget {i}", screen) for i, widget in enumerate(data["widgets"]))
    _check_parents(parts)
    _check_captions(parts)
    if data["layout"] == "roomy":
        _check_cells(parts)
    return Scene(screen, data["layout"], parts, tuple(_read_windows(data.get("windows", ()), screen)))


def _read_windows(data: Any, screen: Size) -> Iterator[Window]:
    if not isinstance(data, list | tuple):
        raise TaskError("The simulated desktop's 'windows' is not a list.")
    for i, window in enumerate(data):
        if not isinstance(window, Mapping) or not isinstance(window.get("title"), str):
            raise TaskError(f"Window {i} of the simulated desktop needs a title and a box.")
        yield Window(window["title"], _read_box(window.get("box"), f"Window {i}", screen))


def _read_screen(value: Any) -> Size:
    if not _integers(value, 2) or not all(MIN_SIDE <= side <= MAX_SIDE for side in value):
        raise TaskError(f"The simulated screen is {value!r}; write [width, height] from {MIN_SIDE} to {MAX_SIDE}.")
    return Size(*value)


def _read_part(data: Any, where: str, screen: Size) -> Part:
    if not isinstance(data, Mapping) or not isinstance(data.get("caption"), str):
        raise TaskError(f"{where} of the simulated desktop needs a kind and a caption.")
    kind = data.get("kind")
    if kind not in KINDS:
        raise TaskError(f"{where} has kind {kind!r}; choose from {', '.join(KINDS)}.")
    where = f"{where} ({kind} {data['caption']})"
    for key, expected, owner in (("checked", bool, "check"), ("submits", bool, "button"), ("text", str, "field")):
        if key in data and (kind != owner or not isinstance(data[key], expected)):
            raise TaskError(
                f"{where} has {key} = {data[key]!r}; only a {owner} has that, and it is a {expected.__name__}."
            )
    parent = data.get("parent")
    if parent is not None and (not isinstance(parent, int) or isinstance(parent, bool)):
        raise TaskError(f"{where} has parent {parent!r}; write the number of a widget.")
    slots = data.get("slots", ())
    if not isinstance(slots, list | tuple) or (kind == "list") != bool(slots):
        raise TaskError(f"{where} has slots {slots!r}; a list needs at least one box there, other kinds none.")
    return Part(
        kind=kind,
        caption=data["caption"],
        box=None if kind == "row" else _read_box(data.get("box"), where, screen),
        parent=parent,
        checked=data.get("checked", False),
        text=data.get("text", ""),
        slots=tuple(_read_box(slot, where, screen) for slot in slots),
        submits=data.get("submits", False),
    )


def _read_box(value: Any, where: str, screen: Size) -> Box:
    if not _integers(value, 4):
        raise TaskError(f"{where} has box {value!r}; write [left, top, width, height] in pixels.")
    left, top, width, height = value
    inside = left >= 0 and top >= 0 and left + width <= screen.width and top + height <= screen.height
    if width < 1 or height < 1 or not inside:
        size = f"{screen.width} x {screen.height}"
        raise TaskError(f"{where} has box {list(value)}, which is empty or not inside the {size} screen.")
    return left, top, width, height


def _check_parents(parts: tuple[Part, ...]) -> None:
    for i, part in enumerate(parts):
        if part.parent is not None and not 0 <= part.parent < len(parts):
            raise TaskError(f"Widget {i} ({part.kind} {part.caption}) has parent {part.parent}, which does not exist.")
        kind = None if part.parent is None else parts[part.parent].kind
        allowed = _PARENTS.get(part.kind, (None,))
        if kind not in allowed:
            wanted = " or ".join(name or "none" for name in allowed)
            found = kind or "none"
            raise TaskError(f"Widget {i} ({part.kind} {part.caption}) has parent {found}; it needs {wanted}.")


def _check_captions(parts: tuple[Part, ...]) -> None:
    """Checkers know fields and check boxes by their captions."""
    captions = [part.caption for part in parts if part.kind in ("field", "check")]
    for caption in captions:
        if captions.count(caption) > 1:
            raise TaskError(f"Two fields or check boxes are called '{caption}'; give each a caption of its own.")


def _check_cells(parts: tuple[Part, ...]) -> None:
    for i, part in enumerate(parts):
        for box in (part.box, *part.slots):
            if box is not None and box[2:] != (CELL, CELL):
                raise TaskError(
                    f"Widget {i} ({part.kind} {part.caption}) has box {list(box)}; a cell is {CELL} x {CELL}."
                )


def _integers(value: Any, length: int) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == length
        and all(isinstance(number, int) and not isinstance(number, bool) for number in value)
    )
