"""Fixtures are what they say they are, and the same every time."""

import io
import zipfile
from xml.etree import ElementTree

import pytest
from PIL import Image

from flywheel.packs.documents import column, docx, png, pptx, xlsx

BOOK = xlsx([["item", "count"], ["a & b", 3], ["", 2.5]], "Stock")
TEXT = docx(["Title", "One < two", ""])
DECK = pptx([("Title", "first\nsecond"), ("Other", "")])


def words(data: bytes, part: str, tag: str) -> list[str | None]:
    root = ElementTree.fromstring(zipfile.ZipFile(io.BytesIO(data)).read(part))
    return [element.text for element in root.iter() if element.tag.rpartition("}")[2] == tag]


def test_a_workbook_holds_its_cells() -> None:
    assert words(BOOK, "xl/worksheets/sheet1.xml", "t") == ["item", "count", "a & b"]
    assert words(BOOK, "xl/worksheets/sheet1.xml", "v") == ["3", "2.5"]


def test_a_text_document_holds_its_paragraphs() -> None:
    assert words(TEXT, "word/document.xml", "t") == ["Title", "One < two", None]


def test_a_presentation_holds_its_slides() -> None:
    assert words(DECK, "ppt/slides/slide1.xml", "t") == ["Title", "first", "second"]
    assert words(DECK, "ppt/slides/slide2.xml", "t") == ["Other"]


@pytest.mark.parametrize("data", [BOOK, TEXT, DECK])
def test_every_part_is_named_and_every_relation_leads_to_one(data: bytes) -> None:
    archive = zipfile.ZipFile(io.BytesIO(data))
    names = set(archive.namelist())
    for name in names:
        root = ElementTree.fromstring(archive.read(name))
        if name.endswith(".rels"):
            folder = name.partition("_rels/")[0]
            for relation in root:
                target = folder + relation.attrib["Target"]
                while "/../" in target:
                    before, _, after = target.partition("/../")
                    target = f"{before.rpartition('/')[0]}/{after}"
                assert target in names
        elif name == "[Content_Types].xml":
            listed = {element.attrib["PartName"].lstrip("/") for element in root if "PartName" in element.attrib}
            assert listed == {part for part in names - {name} if not part.endswith(".rels")}


def test_a_picture_has_its_pixels() -> None:
    data = png(5, 3, lambda x, y: (x * 10, y * 20, 7))
    with Image.open(io.BytesIO(data)) as image:
        assert (image.size, image.mode) == ((5, 3), "RGB")
        assert image.getpixel((4, 2)) == (40, 40, 7)


def test_the_same_content_gives_the_same_bytes() -> None:
    assert xlsx([["item", "count"], ["a & b", 3], ["", 2.5]], "Stock") == BOOK
    assert docx(["Title", "One < two", ""]) == TEXT


def test_columns_have_letters() -> None:
    assert [column(index) for index in (0, 2, 25)] == ["A", "C", "Z"]
