"""The parent's side of the accessibility worker, and the tree as a model reads it: filtered, one line each, capped."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import DesktopGoneError

DEADLINE = 12.0
"""Seconds for an answer: the worker's own limit of 8, its start, and the answer that an application owes it."""

_NS = "https://accessibility.ubuntu.example.org/ns"
_ST, _CP = f"{{{_NS}/state}}", f"{{{_NS}/component}}"
_HEAD = "tag\tname\ttext\tposition (top-left x&y)\tsize (w&h)\tstate"
_SHOWN_STATES = ("focused", "selected", "checked", "expanded", "pressed")
_ACTED_ON = """
push-button toggle-button radio-button check-box combo-box entry text password-text terminal menu menu-item
check-menu-item radio-menu-item page-tab list-item tree-item table-cell link slider spin-button icon paragraph
heading switch
"""
_INTERACTIVE = frozenset(_ACTED_ON.split())
_CUT = "[cut: {dropped} more elements]"


class Accessibility:
    """Starts the worker when it is first asked, and again when it died or did not answer in time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None

    def xml(self, *, seen: bool = False) -> str:
        """The tree in OSWorld's XML, whole or what is seen. Raises `DesktopGoneError` when the bus does not answer."""
        return str(self._ask("seen" if seen else "tree")["xml"])

    def terminal(self) -> str | None:
        """What the terminal in the active window shows; None when there is none."""
        text = self._ask("terminal")["text"]
        return None if text is None else str(text)

    def close(self) -> None:
        with self._turn:
            self._kill()

    def _ask(self, want: str) -> dict[str, Any]:
        """A worker that died is replaced once; one that hangs costs the deadline and is not asked again."""
        failure: Exception | None = None
        with self._turn:
            for _ in range(2):
                try:
                    return self._exchange(self._running(), want)
                except TimeoutError as error:
                    failure = error
                    break
                except (OSError, ValueError) as error:
                    failure = error
                    self._kill()
            self._kill()
        message = "The accessibility bus does not answer; is at-spi running on this desktop?"
        raise DesktopGoneError(message) from failure

    def _running(self) -> subprocess.Popen[bytes]:
        if self._worker is None or self._worker.poll() is not None:
            self._kill()
            self._worker = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.atspi"],
                cwd="/",  # not the home folder, where a json.py of an agent would stand in for Python's
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._worker

    def _exchange(self, worker: subprocess.Popen[bytes], want: str) -> dict[str, Any]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps({"want": want}).encode() + b"\n")
        worker.stdin.flush()
        answer, until = bytearray(), time.monotonic() + DEADLINE
        with selectors.DefaultSelector() as selector:
            selector.register(worker.stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                data = os.read(worker.stdout.fileno(), 1 << 20)
                if not data:
                    raise OSError("the worker ended")
                answer += data
        told: dict[str, Any] = json.loads(answer)
        return told

    def _kill(self) -> None:
        if self._worker is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._worker.pid, signal.SIGKILL)
            self._worker.wait()
            for stream in (self._worker.stdin, self._worker.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._worker = None


@dataclass(frozen=True, slots=True)
class Node:
    """One element that is seen; pixels of the screen."""

    tag: str
    name: str
    text: str
    x: int
    y: int
    width: int
    height: int
    states: tuple[str, ...]

    def line(self) -> str:
        columns = (self.tag, self.name, self.text)
        told = [" ".join(column.split()) for column in columns]
        place = [f"({self.x}, {self.y})", f"({self.width}, {self.height})"]
        return "\t".join([*told, *place, " ".join(self.states)]).rstrip()


def seen_nodes(xml: str, screen: tuple[int, int]) -> list[Node]:
    """Elements that are showing on the screen, have a size, and a name, a text or a use, in the order of the tree."""
    return [node for element in ET.fromstring(xml).iter() if (node := _node(element, screen)) is not None]


def outline(nodes: list[Node], limit: int) -> str:
    """One line a node under a head, at most `limit` characters; the last line tells how many were cut."""
    lines, used, reserve = [_HEAD], len(_HEAD), len(_CUT) + 8
    for index, node in enumerate(nodes):
        line = node.line()
        room = limit - used - (0 if index == len(nodes) - 1 else reserve)
        if len(line) + 1 > room:
            lines.append(_CUT.format(dropped=len(nodes) - index))
            break
        lines.append(line)
        used += len(line) + 1
    return "\n".join(lines)[: max(0, limit)]


def marked(nodes: list[Node]) -> Iterator[Node]:
    """Nodes that an agent may want to act on."""
    return (node for node in nodes if node.tag in _INTERACTIVE)


def _node(element: ET.Element, screen: tuple[int, int]) -> Node | None:
    if not (element.get(f"{_ST}showing") and element.get(f"{_ST}visible")):
        return None
    x, y = _pair(element.get(f"{_CP}screencoord"))
    width, height = _pair(element.get(f"{_CP}size"))
    if width <= 0 or height <= 0 or x + width <= 0 or y + height <= 0 or x >= screen[0] or y >= screen[1]:
        return None
    name, text = element.get("name") or "", (element.text or "").strip()
    if not (name or text or element.tag in _INTERACTIVE) or element.tag in ("application", "desktop-frame"):
        return None
    states = tuple(state for state in _SHOWN_STATES if element.get(f"{_ST}{state}"))
    return Node(element.tag, name, "" if text == name else text, x, y, width, height, states)


def _pair(text: str | None) -> tuple[int, int]:
    first, _, second = (text or "(0, 0)").strip("()").partition(",")
    return int(first), int(second)
