"""Top-level windows through EWMH: found by title or class, activated, closed, measured, and whose process they are."""

import os
import time
from dataclasses import dataclass
from typing import Any

from Xlib import X, Xatom
from Xlib.error import XError
from Xlib.ext import res
from Xlib.protocol import event

from .connection import Connection

_PAGER = 2
"""Source indication of EWMH: the user's own wish, which window managers obey."""
_CHROME = ("Chromium", "Google Chrome")


@dataclass(frozen=True, slots=True)
class Window:
    """`classes` is WM_CLASS: instance and class."""

    id: int
    title: str
    classes: tuple[str, ...]


class Windows:
    """Over one persistent connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ping(self) -> None:
        """A round trip; raises `DesktopGoneError`."""
        with self._connection.use() as display:
            display.sync()

    def all(self) -> list[Window]:
        """In the order in which they were mapped."""
        with self._connection.use() as display:
            return [window for each in self._ids(display) if (window := _read(display, each)) is not None]

    def active(self) -> Window | None:
        """The one that has the focus."""
        with self._connection.use() as display:
            ids = _property(display, display.screen().root, "_NET_ACTIVE_WINDOW")
            return _read(display, ids[0]) if ids and ids[0] else None

    def find(self, name: str, *, strict: bool = False, by_class: bool = False) -> Window | None:
        """The first whose title (or WM_CLASS, "instance.class") contains `name`; `strict` asks for all of it, exactly.

        These are the rules of `wmctrl -a`, `-F` and `-x`; a task that asks for Google Chrome is given Chromium.
        """
        for window in self.all():
            texts = [".".join(window.classes)] if by_class else [window.title, window.title.replace(*_CHROME)]
            if name in texts or (not strict and any(name.lower() in text.lower() for text in texts)):
                return window
        return None

    def size(self, class_name: str) -> tuple[int, int] | None:
        """Pixels of the first window whose instance or class is `class_name`, whatever the case."""
        for window in self.all():
            if class_name.lower() in (each.lower() for each in window.classes):
                with self._connection.use() as display:
                    geometry = display.create_resource_object("window", window.id).get_geometry()
                    return geometry.width, geometry.height
        return None

    def activate(self, window: Window) -> None:
        """Raise it and give it the focus; returns when that happened, after a second at the latest."""
        with self._connection.use() as display:
            desktop = _property(display, display.create_resource_object("window", window.id), "_NET_WM_DESKTOP")
            if desktop and desktop[0] != 0xFFFFFFFF:
                self._ask(display, display.screen().root, "_NET_CURRENT_DESKTOP", [desktop[0], 0])
            self._ask(display, display.create_resource_object("window", window.id), "_NET_ACTIVE_WINDOW", [_PAGER, 0])
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            active = self.active()
            if active is not None and active.id == window.id:
                return
            time.sleep(0.02)

    def close(self, window: Window) -> None:
        """Ask it to close, as its title bar would."""
        with self._connection.use() as display:
            self._ask(display, display.create_resource_object("window", window.id), "_NET_CLOSE_WINDOW", [0, _PAGER])

    def of_session(self, session: int) -> bool:
        """Whether a process of this session (see setsid) shows a window."""
        with self._connection.use() as display:
            if not display.has_extension("X-Resource"):
                return False
            return any(_session(_pid(display, each)) == session for each in self._ids(display))

    def _ids(self, display: Any) -> list[int]:
        return _property(display, display.screen().root, "_NET_CLIENT_LIST")

    def _ask(self, display: Any, window: Any, message: str, data: list[int]) -> None:
        words = (data + [0] * 5)[:5]
        asked = event.ClientMessage(window=window, client_type=display.intern_atom(message), data=(32, words))
        mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
        display.screen().root.send_event(asked, event_mask=mask)
        display.sync()


def _property(display: Any, window: Any, name: str) -> list[int]:
    try:
        found = window.get_full_property(display.intern_atom(name), X.AnyPropertyType)
    except XError:
        return []
    return list(found.value) if found is not None and found.format == 32 else []


def _read(display: Any, window_id: int) -> Window | None:
    window = display.create_resource_object("window", window_id)
    try:
        title = window.get_full_property(display.intern_atom("_NET_WM_NAME"), X.AnyPropertyType)
        title = title or window.get_full_property(Xatom.WM_NAME, X.AnyPropertyType)
        classes = window.get_wm_class() or ()
    except XError:
        return None  # closed meanwhile
    value = title.value if title is not None else b""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return Window(window_id, text, tuple(classes))


def _pid(display: Any, window_id: int) -> int:
    """By the credentials of the client's socket, which no client can choose; 0 when the server does not know."""
    specs = [{"client": window_id, "mask": res.LocalClientPIDMask}]
    try:
        answer = display.res_query_client_ids(specs)
    except XError:
        return 0
    return next((int(each.value[0]) for each in answer.ids if each.value), 0)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid) if pid > 0 else -1
    except OSError:
        return -1
