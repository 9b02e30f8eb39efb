"""Screenshots: a shared-memory grab, the pointer drawn on it, encoded as PNG, JPEG or lossless WebP."""

import contextlib
import io
import struct
import threading
from typing import Any

import mss
from mss.exception import ScreenShotError
from PIL import Image
from Xlib.error import XError

from .connection import Connection
from .errors import DesktopGoneError, RefusedError

MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}


class Screen:
    """Grabs of the whole screen. Its X connections are its own, so that it never waits for a hand at work."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        self._grabber: Any = None
        self._grabber_size = (0, 0)
        self._cursor: tuple[int, Image.Image] | None = None
        connection.opened = self._opened

    def image(self) -> Image.Image:
        """RGB, with the pointer as OSWorld's server draws it: the cursor's top left corner at the hot spot."""
        with self._turn, self._connection.use() as display:
            root = display.screen().root
            pointer, geometry = root.query_pointer(), root.get_geometry()
            cursor = self._cursor_image(display, root)
            pixels = self._grab(geometry.width, geometry.height)
        image = Image.frombuffer("RGB", (geometry.width, geometry.height), pixels, "raw", "BGRX", 0, 1)
        if cursor is not None:
            image.paste(cursor, (pointer.root_x, pointer.root_y), cursor)
        return image

    def _opened(self, display: Any) -> None:
        if display.has_extension("XFIXES"):
            display.xfixes_query_version()
        self._cursor = None
        self._forget_grabber()

    def _grab(self, width: int, height: int) -> bytearray:
        """Rows of BGRX. Raises `DesktopGoneError`."""
        try:
            if self._grabber is None or self._grabber_size != (width, height):
                self._forget_grabber()
                self._grabber = mss.MSS(display=self._connection.name)
                self._grabber_size = (width, height)
            pixels: bytearray = self._grabber.grab({"left": 0, "top": 0, "width": width, "height": height}).raw
        except (ScreenShotError, OSError) as error:
            self._forget_grabber()
            raise DesktopGoneError(f"The X server {self._connection.name} gives no picture; try again.") from error
        return pixels

    def _forget_grabber(self) -> None:
        if self._grabber is not None:
            with contextlib.suppress(ScreenShotError, OSError):
                self._grabber.close()
            self._grabber = None

    def _cursor_image(self, display: Any, root: Any) -> Image.Image | None:
        """RGBA; None when the server shows none."""
        try:
            cursor = display.xfixes_get_cursor_image(root)
        except (AttributeError, XError):
            return None
        if self._cursor is None or self._cursor[0] != cursor.cursor_serial:
            data = struct.pack(f"<{len(cursor.cursor_image)}I", *cursor.cursor_image)
            size = (cursor.width, cursor.height)
            self._cursor = cursor.cursor_serial, Image.frombuffer("RGBA", size, data, "raw", "BGRa", 0, 1)
        return self._cursor[1]


def encode(image: Image.Image, codec: str, quality: int = 85) -> bytes:
    """PNG level 1, JPEG with full chroma (coloured text stays legible), or lossless WebP; raises `RefusedError`."""
    out = io.BytesIO()
    match codec:
        case "png":
            image.save(out, "PNG", compress_level=1)
        case "jpeg":
            if not 1 <= quality <= 100:
                raise RefusedError("The quality of a JPEG is a whole number from 1 to 100.")
            image.save(out, "JPEG", quality=quality, subsampling=0)
        case "webp":
            image.save(out, "WEBP", lossless=True, quality=0, method=0)
        case _:
            raise RefusedError(f"There is no image format {codec[:20]!r}; use {', '.join(MEDIA_TYPES)}.")
    return out.getvalue()
