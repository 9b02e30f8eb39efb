"""Images out of packs, each checked against its recorded hash."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import CorruptTrajectoryError


def checked(data: bytes, digest: str, where: Path) -> bytes:
    """`data`, if that is its sha256. Raises `CorruptTrajectoryError`."""
    if hashlib.sha256(data).hexdigest() != digest:
        raise CorruptTrajectoryError(f"An image in {where} does not match its hash; roll its partition out again.")
    return data


class PackFile:
    """Reads images of sealed steps; holds the newest pack open, so use it as a context manager, in one thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pack = ""
        self._descriptor = -1

    def __call__(self, step: Mapping[str, Any]) -> bytes:
        """Raises `CorruptTrajectoryError`."""
        if step["image_pack"] != self._pack:
            self._open(step["image_pack"])
        data = os.pread(self._descriptor, step["image_length"], step["image_offset"])
        return checked(data, step["image_hash"], self._root / self._pack)

    def _open(self, pack: str) -> None:
        self.close()
        try:
            self._descriptor = os.open(self._root / pack, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise CorruptTrajectoryError(f"{self._root / pack} is missing; roll its partition out again.") from error
        self._pack = pack

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._pack, self._descriptor = "", -1

    def __enter__(self) -> "PackFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
