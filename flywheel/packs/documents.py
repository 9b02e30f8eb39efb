"""Small documents as bytes, made with the standard library: the fixtures of task packs.

The same content gives the same bytes, so that tasks that hold them keep their ids.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

_OOXML = "http://schemas.openxmlformats.org"
_OFFICE = f"{_OOXML}/officeDocument/2006/relationships"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MIME = "application/vnd.openxmlformats-officedocument"

Cell = str | int | float
Colour = tuple[int, int, int]


def xlsx(rows: Sequence[Sequence[Cell]], sheet: str = "Sheet1") -> bytes:
    """A workbook of one sheet; row 1 is the first."""
    lines = "".join(
        f'<row r="{r}">' + "".join(_cell(f"{column(c)}{r}", value) for c, value in enumerate(row)) + "</row>"
        for r, row in enumerate(rows, 1)
    )
    main = f"{_OOXML}/spreadsheetml/2006/main"
    return _package(
        "xl/workbook.xml",
        {
            "xl/workbook.xml": (
                f'<workbook xmlns="{main}" xmlns:r="{_OFFICE}"><sheets>'
                f'<sheet name="{escape(sheet)}" sheetId="1" r:id="rId1"/></sheets></workbook>'
            ),
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>',
        },
        {"xl/workbook.xml": "spreadsheetml.sheet.main", "xl/worksheets/sheet1.xml": "spreadsheetml.worksheet"},
        {"xl/workbook.xml": ("worksheets/sheet1.xml",)},
    )


def docx(paragraphs: Sequence[str], properties: str = "") -> bytes:
    """A text document of plain paragraphs; `properties` is the inside of each one's `w:pPr`."""
    body = "".join(
        f'<w:p><w:pPr>{properties}</w:pPr><w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'
        for text in paragraphs
    )
    main = f"{_OOXML}/wordprocessingml/2006/main"
    document = f'<w:document xmlns:w="{main}"><w:body>{body}</w:body></w:document>'
    return _package(
        "word/document.xml",
        {"word/document.xml": document},
        {"word/document.xml": "wordprocessingml.document.main"},
        {},
    )


def pptx(slides: Sequence[tuple[str, str]]) -> bytes:
    """A presentation, 4:3; each slide has a title and a body."""
    names = [f"slides/slide{number}.xml" for number in range(1, len(slides) + 1)]
    listed = "".join(f'<p:sldId id="{256 + i}" r:id="rId{i + 2}"/>' for i in range(len(slides)))
    presentation = (
        f"<p:presentation {_SPACES}><p:sldMasterIdLst>"
        f'<p:sldMasterId id="2147483648" r:id="rId1"/></p:sldMasterIdLst><p:sldIdLst>{listed}</p:sldIdLst>'
        '<p:sldSz cx="9144000" cy="6858000" type="screen4x3"/><p:notesSz cx="6858000" cy="9144000"/></p:presentation>'
    )
    master = (
        f"<p:sldMaster {_SPACES}>{_tree(_placeholder(2, 'title', ''), _placeholder(3, 'body', ''))}"
        '<p:clrMap bg1="lt1" tx1="dk1" bg2="lt2" tx2="dk2" accent1="accent1" accent2="accent2" accent3="accent3" '
        'accent4="accent4" accent5="accent5" accent6="accent6" hlink="hlink" folHlink="folHlink"/>'
        '<p:sldLayoutIdLst><p:sldLayoutId id="2147483649" r:id="rId1"/></p:sldLayoutIdLst></p:sldMaster>'
    )
    empty = _tree(_placeholder(2, "title", ""), _placeholder(3, "body", ""))
    layout = f'<p:sldLayout {_SPACES} type="obj">{empty}</p:sldLayout>'
    parts = {"ppt/presentation.xml": presentation, "ppt/slideMasters/slideMaster1.xml": master}
    parts |= {"ppt/slideLayouts/slideLayout1.xml": layout, "ppt/theme/theme1.xml": _THEME}
    kinds = {
        "ppt/presentation.xml": "presentationml.presentation.main",
        "ppt/slideMasters/slideMaster1.xml": "presentationml.slideMaster",
        "ppt/slideLayouts/slideLayout1.xml": "presentationml.slideLayout",
        "ppt/theme/theme1.xml": "theme",
    }
    relations = {
        "ppt/presentation.xml": ("slideMasters/slideMaster1.xml", *names),
        "ppt/slideMasters/slideMaster1.xml": ("../slideLayouts/slideLayout1.xml", "../theme/theme1.xml"),
        "ppt/slideLayouts/slideLayout1.xml": ("../slideMasters/slideMaster1.xml",),
    }
    for name, (title, body) in zip(names, slides, strict=True):
        content = _tree(_placeholder(2, "title", title), _placeholder(3, "body", body))
        parts[f"ppt/{name}"] = f"<p:sld {_SPACES}>{content}</p:sld>"
        kinds[f"ppt/{name}"] = "presentationml.slide"
        relations[f"ppt/{name}"] = ("../slideLayouts/slideLayout1.xml",)
    return _package("ppt/presentation.xml", parts, kinds, relations)


def png(width: int, height: int, colour_at: Callable[[int, int], Colour]) -> bytes:
    """An RGB picture; `colour_at(x, y)` gives each pixel."""
    lines = b"".join(b"\0" + bytes(value for x in range(width) for value in colour_at(x, y)) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def column(index: int) -> str:
    """Name of a column of a sheet, 0 is A; up to Z."""
    return chr(ord("A") + index)


# --- parts ---------------------------------------------------------------------------------------------------

_SPACES = f'xmlns:a="{_OOXML}/drawingml/2006/main" xmlns:r="{_OFFICE}" xmlns:p="{_OOXML}/presentationml/2006/main"'
_COLOURS = {
    "dk1": "000000", "lt1": "FFFFFF", "dk2": "44546A", "lt2": "E7E6E6", "accent1": "4472C4", "accent2": "ED7D31",
    "accent3": "A5A5A5", "accent4": "FFC000", "accent5": "5B9BD5", "accent6": "70AD47", "hlink": "0563C1",
    "folHlink": "954F72",
}  # fmt: skip
_FONT = '<a:latin typeface="Liberation Sans"/><a:ea typeface=""/><a:cs typeface=""/>'
_FILL = '<a:solidFill><a:schemeClr val="phClr"/></a:solidFill>'
_THEME = (
    f'<a:theme xmlns:a="{_OOXML}/drawingml/2006/main" name="Plain"><a:themeElements><a:clrScheme name="Plain">'
    + "".join(f'<a:{name}><a:srgbClr val="{value}"/></a:{name}>' for name, value in _COLOURS.items())
    + f'</a:clrScheme><a:fontScheme name="Plain"><a:majorFont>{_FONT}</a:majorFont><a:minorFont>{_FONT}</a:minorFont>'
    f'</a:fontScheme><a:fmtScheme name="Plain"><a:fillStyleLst>{_FILL * 3}</a:fillStyleLst><a:lnStyleLst>'
    + f'<a:ln w="6350">{_FILL}</a:ln>' * 3
    + "</a:lnStyleLst><a:effectStyleLst>"
    + "<a:effectStyle><a:effectLst/></a:effectStyle>" * 3
    + f"</a:effectStyleLst><a:bgFillStyleLst>{_FILL * 3}</a:bgFillStyleLst></a:fmtScheme></a:themeElements></a:theme>"
)
_BOXES = {"title": (457200, 274638, 8229600, 1143000), "body": (457200, 1600200, 8229600, 4525963)}
"""Left, top, width and height in EMU, on a slide of 9144000 x 6858000."""


def _cell(place: str, value: Cell) -> str:
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>' if value else ""
    return f'<c r="{place}"><v>{value}</v></c>'


def _tree(*shapes: str) -> str:
    return (
        '<p:cSld><p:spTree><p:nvGrpSpPr><p:cNvPr id="1" name=""/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/>'
        + "".join(shapes)
        + "</p:spTree></p:cSld>"
    )


def _placeholder(number: int, kind: str, text: str) -> str:
    x, y, width, height = _BOXES[kind]
    index = ' idx="1"' if kind == "body" else ""
    lines = "".join(
        f"<a:p><a:r><a:t>{escape(line)}</a:t></a:r></a:p>" if line else "<a:p/>" for line in text.split("\n")
    )
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="{number}" name="{kind.capitalize()}"/><p:cNvSpPr/>'
        f'<p:nvPr><p:ph type="{kind}"{index}/></p:nvPr></p:nvSpPr><p:spPr><a:xfrm><a:off x="{x}" y="{y}"/>'
        f'<a:ext cx="{width}" cy="{height}"/></a:xfrm><a:prstGeom prst="rect"><a:avLst/></a:prstGeom></p:spPr>'
        f"<p:txBody><a:bodyPr/><a:lstStyle/>{lines}</p:txBody></p:sp>"
    )


def _package(main: str, parts: dict[str, str], kinds: dict[str, str], relations: dict[str, tuple[str, ...]]) -> bytes:
    """An OOXML package. `kinds` are content types without their ends, `relations` go from a part to its targets."""
    overrides = "".join(
        f'<Override PartName="/{name}" ContentType="{_MIME}.{kind}+xml"/>' for name, kind in kinds.items()
    )
    types = (
        f'<Types xmlns="{_OOXML}/package/2006/content-types"><Default Extension="rels" '
        f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>{overrides}</Types>'
    )
    files = {"[Content_Types].xml": types, "_rels/.rels": _relations((main,), "officeDocument"), **parts}
    for part, targets in relations.items():
        folder, _, name = part.rpartition("/")
        files[f"{folder}/_rels/{name}.rels"] = _relations(targets)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), _HEAD + text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _relations(targets: Sequence[str], kind: str = "") -> str:
    """The kind of a relation is the folder of its target without the plural, unless it is given."""
    kinds = [kind or target.split("/")[-2].removesuffix("s") for target in targets]
    listed = "".join(
        f'<Relationship Id="rId{i}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for i, (kind, target) in enumerate(zip(kinds, targets, strict=True), 1)
    )
    return f'<Relationships xmlns="{_OOXML}/package/2006/relationships">{listed}</Relationships>'
