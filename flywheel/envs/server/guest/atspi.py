"""The accessibility worker: reads the AT-SPI tree in a process of its own, because a hung application hangs the reader.

    python -m guest.atspi      one JSON request a line in, one JSON answer a line out

Requests: {"want": "tree"} -> {"xml": OSWorld's XML}; {"want": "seen"} -> the same without what hides in closed menus
and other tabs, which is most of it; {"want": "terminal"} -> {"text": str | null}.
The bounds are those of OSWorld's server, and a time limit that it lacks: what was read until then is the answer.
"""

import contextlib
import json
import re
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import Any

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

MAX_DEPTH, MAX_WIDTH, MAX_NODES = 50, 1024, 5000
MAX_SECONDS = 8.0
MAX_TEXT = 100_000
"""Characters of text kept of one node."""
MAX_NODES_ABOVE_TERMINALS = 500
_WITHOUT_TERMINALS = {"menu bar", "tool bar", "status bar", "table", "tree table", "tree", "list"}
HUGE_TABLE = 5000
"""Cells from which only those that are seen are read; a Calc sheet has 16384 x 1048576."""

NAMESPACES = {
    name: f"https://accessibility.ubuntu.example.org/ns/{path}"
    for name, path in {
        "st": "state",
        "attr": "attributes",
        "cp": "component",
        "doc": "document",
        "docattr": "document/attributes",
        "txt": "text",
        "val": "value",
        "act": "action",
    }.items()
}
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLACEHOLDERS = str.maketrans("", "", "\ufffc\ufffd")  # stand for embedded objects; OSWorld drops both


class Reader:
    """One walk over the tree, within the bounds; `seen` leaves out what is not showing."""

    def __init__(self, *, seen: bool = False) -> None:
        self._seen = seen
        self._nodes = 0
        self._until = time.monotonic() + MAX_SECONDS

    def tree(self) -> ET.Element:
        """Every application, as OSWorld's server writes it."""
        desktop = Atspi.get_desktop(0)
        root = ET.Element("desktop-frame")
        for child in _children(desktop, MAX_WIDTH):
            if self._spent():
                break
            root.append(self._element(child, 1))
        return root

    def terminal(self) -> str | None:
        """The text of the terminal that has the focus, else of one that is seen in the active window."""
        found: Any = None
        for application in _children(Atspi.get_desktop(0), MAX_WIDTH):
            for frame in _children(application, MAX_WIDTH):
                if "active" not in _states(frame):
                    continue
                for node in self._terminals(frame, 0):
                    if found is None or "focused" in _states(node):
                        found = node
        return None if found is None else _text(found).rstrip()

    def _terminals(self, node: Any, depth: int) -> Iterator[Any]:
        """Those that are showing; documents and bars hold none and are large."""
        if self._nodes > MAX_NODES_ABOVE_TERMINALS or depth > MAX_DEPTH:
            return
        self._nodes += 1
        role = _role(node)
        if role == "terminal":
            yield node
        elif not role.startswith("document") and role not in _WITHOUT_TERMINALS:
            for child in _children(node, MAX_WIDTH):
                if "showing" in _states(child):
                    yield from self._terminals(child, depth + 1)

    def _spent(self) -> bool:
        return self._nodes >= MAX_NODES or time.monotonic() > self._until

    def _element(self, node: Any, depth: int) -> ET.Element:
        self._nodes += 1
        states, faces = _states(node), _faces(node)
        element = ET.Element(_xml_name(_role(node)), _attributes(node, states, faces, brief=self._seen))
        text = _text(node) if "Text" in faces else ""
        if text:
            element.text = text
        if depth < MAX_DEPTH:
            for child in self._offspring(node, faces):
                if self._spent():
                    break
                # applications (depth 1) have no such state, their windows have
                if not self._seen or "showing" in _states(child):
                    element.append(self._element(child, depth + 1))
        return element

    def _offspring(self, node: Any, faces: set[str]) -> Iterator[Any]:
        try:
            huge = "Table" in faces and node.get_child_count() > HUGE_TABLE
        except GLib.GError:
            return
        if not huge:
            yield from _children(node, MAX_WIDTH)
            return
        for cell in _showing_cells(node):
            if self._spent():
                return
            # empty cells are most of a sheet, and each costs LibreOffice ten answers
            if not self._seen or _text(cell) or _states(cell) & {"focused", "selected"}:
                yield cell


def _children(node: Any, most: int) -> Iterator[Any]:
    try:
        count = node.get_child_count()
    except GLib.GError:
        return
    for index in range(min(count, most)):
        try:
            child = node.get_child_at_index(index)
        except GLib.GError:
            continue
        if child is not None:
            yield child


def _showing_cells(node: Any) -> Iterator[Any]:
    """Cells of a table between the one in its upper left corner on the screen and the first that is not showing."""
    try:
        table, columns = node.get_table_iface(), node.get_table_iface().get_n_columns()
        area = node.get_component_iface().get_extents(Atspi.CoordType.SCREEN)
        corner = node.get_component_iface().get_accessible_at_point(area.x + 2, area.y + 2, Atspi.CoordType.SCREEN)
        first = corner.get_index_in_parent() if corner is not None else 0
        top, left = divmod(max(0, first), columns)
        for row in range(top, top + MAX_WIDTH):
            for column in range(left, min(left + MAX_WIDTH, columns)):
                cell = table.get_accessible_at(row, column)
                if cell is None or "showing" not in _states(cell):
                    break
                yield cell
            else:
                column += 1
            if column == left:
                return
    except (GLib.GError, AttributeError):
        return


def _role(node: Any) -> str:
    try:
        return node.get_role_name() or "unknown"
    except GLib.GError:
        return "unknown"


def _states(node: Any) -> set[str]:
    try:
        return {state.value_nick.replace("-", "_") for state in node.get_state_set().get_states()}
    except GLib.GError:
        return set()


def _faces(node: Any) -> set[str]:
    try:
        return set(node.get_interfaces())
    except GLib.GError:
        return set()


def _text(node: Any) -> str:
    try:
        count = Atspi.Text.get_character_count(node)
        text: str = Atspi.Text.get_text(node, 0, min(count, MAX_TEXT))
    except (GLib.GError, AttributeError):
        return ""
    return _NOT_XML.sub("", text.translate(_PLACEHOLDERS))


def _attributes(node: Any, states: set[str], faces: set[str], *, brief: bool) -> dict[str, str]:
    """`brief` leaves out what only evaluators ask for."""
    found = {_qualified("st", state): "true" for state in sorted(states)}
    found |= {tag: "true" for tag, face in (("image", "Image"), ("selection", "Selection")) if face in faces}
    parts: list[tuple[Callable[[Any], dict[str, str]], bool]] = [
        (_name, True),
        (_place, "Component" in faces and {"visible", "showing"} <= states),
        (_own_attributes, not brief),
        (_value, "Value" in faces and not brief),
        (_actions, "Action" in faces and not brief),
    ]
    for part, wanted in parts:
        if wanted:
            with contextlib.suppress(GLib.GError, AttributeError):  # the application has gone, or answers half of it
                found |= part(node)
    return found


def _name(node: Any) -> dict[str, str]:
    return {"name": _clean(node.get_name())}


def _own_attributes(node: Any) -> dict[str, str]:
    return {_qualified("attr", name): _clean(value) for name, value in (node.get_attributes() or {}).items() if name}


def _place(node: Any) -> dict[str, str]:
    """Pixels of the screen."""
    box = Atspi.Component.get_extents(node, Atspi.CoordType.SCREEN)
    return {
        _qualified("cp", "screencoord"): str((box.x, box.y)),
        _qualified("cp", "size"): str((box.width, box.height)),
    }


def _value(node: Any) -> dict[str, str]:
    values = {
        "value": Atspi.Value.get_current_value(node),
        "min": Atspi.Value.get_minimum_value(node),
        "max": Atspi.Value.get_maximum_value(node),
        "step": Atspi.Value.get_minimum_increment(node),
    }
    return {_qualified("val", name): str(value) for name, value in values.items()}


def _actions(node: Any) -> dict[str, str]:
    found = {}
    for index in range(min(Atspi.Action.get_n_actions(node), 20)):
        name = (Atspi.Action.get_action_name(node, index) or "action").replace(" ", "-")
        found[_qualified("act", f"{name}_desc")] = _clean(Atspi.Action.get_action_description(node, index))
        found[_qualified("act", f"{name}_kb")] = _clean(Atspi.Action.get_key_binding(node, index))
    return found


def _qualified(space: str, name: str) -> str:
    return f"{{{NAMESPACES[space]}}}{_xml_name(name)}"


def _xml_name(name: str) -> str:
    cleaned = re.sub(r"[^\w.-]", "-", name.strip()) or "unknown"
    return cleaned if cleaned[0].isalpha() or cleaned[0] == "_" else f"_{cleaned}"


def _clean(text: str | None) -> str:
    return _NOT_XML.sub("", text or "")


def main() -> None:
    for prefix, uri in NAMESPACES.items():
        ET.register_namespace(prefix, uri)
    Atspi.init()
    Atspi.set_timeout(800, 3000)  # ms for an answer; the second while an application starts
    for line in sys.stdin:
        want = json.loads(line).get("want")
        answer: dict[str, Any] = (
            {"text": Reader().terminal()}
            if want == "terminal"
            else {"xml": ET.tostring(Reader(seen=want == "seen").tree(), encoding="unicode")}
        )
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
