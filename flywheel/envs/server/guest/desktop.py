"""All that the server knows of its desktop, opened once for the life of the process."""

import os
import tempfile
from dataclasses import dataclass

from .accessibility import Accessibility
from .children import Children
from .connection import Connection
from .hand import Hand
from .recording import Recorder
from .screen import Screen
from .windows import Windows


@dataclass(frozen=True, slots=True)
class Desktop:
    """Each part with an X connection of its own, so that a slow one does not hold the others up."""

    display: str
    hand: Hand
    screen: Screen
    windows: Windows
    children: Children
    accessibility: Accessibility
    recorder: Recorder

    @classmethod
    def open(cls, display: str | None = None) -> "Desktop":
        """Nothing is connected yet, so that the server may start before the X server does."""
        name = display or os.environ.get("DISPLAY", ":0")
        windows = Windows(Connection(name))
        return cls(
            display=name,
            hand=Hand(Connection(name)),
            screen=Screen(Connection(name)),
            windows=windows,
            children=Children(windows.of_session),
            accessibility=Accessibility(),
            recorder=Recorder(name, os.path.join(tempfile.gettempdir(), "osworld_recording.mp4")),
        )

    def close(self) -> None:
        self.children.close()
        self.accessibility.close()
        self.recorder.abandon()
