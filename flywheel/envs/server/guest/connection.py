"""One X connection, opened when it is first needed and again after it was lost; used by one thread at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from Xlib import X
from Xlib.display import Display
from Xlib.error import ConnectionClosedError, DisplayError, XError

from .errors import DesktopGoneError


class Connection:
    """Args: `name`, e.g. ":0"; `opened` is called with each new connection, `remapped` when the keyboard changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: Callable[[Any], None] = lambda display: None
        self.remapped: Callable[[Any], None] = lambda display: None
        self._lock = threading.RLock()
        self._display: Any = None

    @contextmanager
    def use(self) -> Iterator[Any]:
        """The display, for this thread alone. Raises `DesktopGoneError` when the X server does not answer."""
        with self._lock:
            try:
                if self._display is None:
                    self._display = Display(self.name)
                    self._display.set_error_handler(_ignore)
                    self.opened(self._display)
                self._drain(self._display)
                yield self._display
            except (ConnectionClosedError, DisplayError, OSError) as error:
                self._display = None
                raise DesktopGoneError(f"The X server {self.name} does not answer; restart the desktop.") from error

    def _drain(self, display: Any) -> None:
        """Events that nobody asked for would pile up; a changed keyboard is announced to every client."""
        remapped = False
        while display.pending_events():
            remapped |= display.next_event().type == X.MappingNotify
        if remapped:
            self.remapped(display)


def _ignore(error: XError, request: Any) -> None:
    """Requests without an answer fail only on windows that are gone meanwhile."""
