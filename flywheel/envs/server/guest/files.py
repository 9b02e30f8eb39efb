"""Files of the guest: read, written, listed, fetched. OSWorld's endpoints."""

import contextlib
import os
import shutil
import stat
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from .errors import RefusedError
from .http import UPLOAD_LIMIT, Fields, patient, printable, text, threaded

FETCH_SECONDS = 60.0
MOST_ENTRIES = 100_000


class FileRoutes:
    """The handlers."""

    def routes(self) -> list[Route]:
        return [
            Route("/file", self.file, methods=["POST"]),
            Route("/setup/upload", self.upload, methods=["POST"]),
            Route("/list_directory", self.list_directory, methods=["POST"]),
            Route("/desktop_path", self.desktop_path, methods=["POST"]),
            Route("/setup/download_file", self.download_file, methods=["POST"]),
        ]

    async def file(self, request: Request) -> Response:
        async with request.form() as form:
            name = form.get("file_path")
        path = await threaded(existing, _form_text(name, "file_path"))
        size = path.stat().st_size
        if size > UPLOAD_LIMIT:
            raise RefusedError(f"{path} has {size} bytes; at most {UPLOAD_LIMIT} are given out.", 413)
        return FileResponse(path, filename=path.name)

    async def upload(self, request: Request) -> Response:
        """Multipart; the file appears whole or not at all."""
        async with request.form(max_files=1, max_fields=10) as form:
            path, data = expanded(_form_text(form.get("file_path"), "file_path")), form.get("file_data")
            if not isinstance(data, UploadFile):
                raise RefusedError("file_path and file_data are required")
            size = await threaded(_write, path, data.file, limiter=patient)
        return text(f"File Uploaded: {size} bytes")

    async def list_directory(self, request: Request) -> Response:
        path = (await Fields.of(request)).text("path")
        return JSONResponse({"directory_tree": await threaded(_Lister().of, path)})

    async def desktop_path(self, request: Request) -> Response:
        path = Path.home() / "Desktop"
        if not path.is_dir():
            raise RefusedError("Unsupported operating system or desktop path not found", 404)
        return JSONResponse({"desktop_path": str(path)})

    async def download_file(self, request: Request) -> Response:
        fields = await Fields.of(request)
        url, path = fields.text("url"), expanded(fields.text("path"))
        if not url.startswith(("http://", "https://")):
            raise RefusedError("Only http and https addresses are fetched.")
        size = await threaded(_fetch, url, path, limiter=patient)
        return text(f"File downloaded successfully: {size} bytes")


def expanded(path: str) -> Path:
    """`~` and variables, as OSWorld's server has it."""
    return Path(os.path.expandvars(os.path.expanduser(path)))


def existing(path: str) -> Path:
    """A regular file, or a link to one; a fifo or a device would never end. Raises `RefusedError`."""
    found = expanded(path)
    try:
        mode = found.stat().st_mode
    except (OSError, ValueError) as error:
        raise RefusedError(f"File not found: {path[:300]}", 404) from error
    if not stat.S_ISREG(mode):
        raise RefusedError(f"{path[:300]} is no regular file.", 404)
    return found


def _form_text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise RefusedError(f"{name} is required")
    return printable(value, name)


def _fetch(url: str, path: Path) -> int:
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:
            return _write(path, answer)
    except (OSError, ValueError) as error:
        raise RefusedError(f"Failed to download {url[:200]}. Error: {str(error)[:200]}", 500) from error


def _write(path: Path, source: BinaryIO) -> int:
    """Into a neighbour first, which then takes the name."""
    if path.is_dir():
        raise RefusedError(f"{path} is a directory; name the file.")
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".upload-", delete=False) as file:
            part = file.name
            shutil.copyfileobj(source, file, 1 << 20)
        os.chmod(part, 0o644)
        os.replace(part, path)
        return path.stat().st_size
    except OSError as error:
        if part is not None:
            with contextlib.suppress(OSError):
                os.remove(part)
        raise RefusedError(f"Failed to write {path}: {error.strerror}.", 500) from error


class _Lister:
    """A directory as OSWorld's evaluators read it; links to directories above are not followed round and round."""

    def __init__(self) -> None:
        self._left = MOST_ENTRIES

    def of(self, path: str) -> dict[str, Any]:
        """Raises `RefusedError` when it is none."""
        if not os.path.isdir(path):
            raise RefusedError("The provided path is not a directory")
        return self.tree(path)

    def tree(self, path: str, above: frozenset[str] = frozenset()) -> dict[str, Any]:
        here = os.path.realpath(path)
        children: list[dict[str, Any]] = []
        try:
            names = [] if here in above else sorted(os.listdir(path))
        except OSError as error:
            return {"error": str(error)}
        for name in names:
            self._left -= 1
            if self._left < 0:
                break
            child = os.path.join(path, name)
            if os.path.isdir(child):
                children.append(self.tree(child, above | {here}))
            else:
                children.append({"type": "file", "name": _printable(name)})
        return {"type": "directory", "name": _printable(os.path.basename(path)), "children": children}


def _printable(name: str) -> str:
    """Bytes of a name that are no UTF-8 become question marks, because JSON cannot hold them."""
    return name.encode("utf-8", "replace").decode()
