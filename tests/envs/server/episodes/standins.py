"""Stand-ins for the files that OSWorld's tasks download: right in kind, so that set-up can open and unpack them.

Runs under the workers' Python, which has the libraries: `python standins.py SUFFIX=PATH ...` or, as a module, `make`.
"""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".gif": "GIF", ".raw": "PNG"}


def make(path: Path) -> None:
    """By the suffix of its name; text where nothing better is known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name, suffix = path.name.lower(), path.suffix.lower()
    if suffix in PICTURES:
        from PIL import Image

        Image.new("RGB", (640, 400), "teal").save(path, PICTURES[suffix])
    elif name.endswith((".tar.gz", ".tar.xz")):
        with tarfile.open(path, "w:xz" if name.endswith("xz") else "w:gz") as archive:
            member = tarfile.TarInfo("standin/readme.txt")
            member.size = 3
            archive.addfile(member, io.BytesIO(b"hi\n"))
    elif suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("standin/readme.txt", "hi\n")
    elif suffix in (".xlsx", ".docx", ".pptx", ".pdf"):
        _document(path, suffix)
    else:
        path.write_text("#!/bin/bash\nexit 0\n" if suffix == ".sh" else "stand-in\n")


def _document(path: Path, suffix: str) -> None:
    import docx
    import openpyxl
    import pptx
    import pymupdf

    if suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in range(1, 20):
            book.active.append([f"row{row}", row, row * 2.5])
        book.save(path)
    elif suffix == ".docx":
        text = docx.Document()
        for number in range(9):
            text.add_paragraph(f"Paragraph {number}")
        text.save(path)
    elif suffix == ".pptx":
        slides = pptx.Presentation()
        slides.slides.add_slide(slides.slide_layouts[1]).shapes.title.text = "Title"
        slides.save(path)
    else:
        pages = pymupdf.open()
        pages.new_page().insert_text((72, 72), "hello")
        pages.save(path)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        make(Path(given))
