"""Tasks in LibreOffice Writer."""

import random

from flywheel.packs.documents import docx
from flywheel.packs.draft import Draft, Json, file_by, like_gold, press, wait, write
from flywheel.packs.offline.office import FOLDER, SAVE, launch, save_as
from flywheel.packs.words import COLOURS, MONTHS, NAMES, PLACES, sentence


def _writer(rng: random.Random, lines: int) -> tuple[str, list[str]]:
    title = f"{rng.choice(MONTHS).capitalize()} {rng.choice(PLACES)}"
    return f"{FOLDER}/{rng.choice(NAMES)}.docx", [title, *(f"{sentence(rng)}." for _ in range(lines))]


def _written(instruction: str, path: str, paragraphs: list[str], judge: Json, solution: list[Json]) -> Draft:
    name = path.rpartition("/")[2]
    return Draft(instruction, judge, solution, launch("writer", path), name, {path: docx(paragraphs)})


def add_paragraph(rng: random.Random) -> Draft:
    """At the end."""
    path, paragraphs = _writer(rng, 2)
    new = f"{sentence(rng)}."
    return _written(
        f"Add a paragraph at the end that says: {new} Save the file.",
        path,
        paragraphs,
        like_gold("compare_docx_files", path, docx([*paragraphs, new]), ignore_blanks=False),
        [
            press("ctrl", "end", to="go to the end"),
            press("enter", to="begin a paragraph"),
            write(new),
            *SAVE,
        ],
    )


def centre_title(rng: random.Random) -> Draft:
    """The first paragraph."""
    path, paragraphs = _writer(rng, 3)
    return _written(
        "Centre the title, which is the first line, and save the file.",
        path,
        paragraphs,
        file_by("is_first_line_centered", path),
        [press("ctrl", "home", to="go to the title"), press("ctrl", "e", to="centre it"), *SAVE],
    )


def page_break(rng: random.Random) -> Draft:
    """And words behind it."""
    path, paragraphs = _writer(rng, 2)
    word = rng.choice(PLACES).capitalize()
    return _written(
        f"Add a page break at the end, type {word} on the new page, and save the file.",
        path,
        paragraphs,
        {
            "func": ["contains_page_break", "compare_docx_files"],
            "result": [{"type": "vm_file", "path": path, "dest": "result.docx"}] * 2,
            "expected": [
                {"type": "rule", "rules": {"page_break_count": 1}},
                {"type": "vm_file", "path": "/tmp/gold/gold.docx", "dest": "gold.docx"},
            ],
            "postconfig": like_gold("", path, docx([*paragraphs, word]))["postconfig"],
        },
        [
            press("ctrl", "end", to="go to the end"),
            press("ctrl", "enter", to="break the page"),
            write(word),
            *SAVE,
        ],
    )


def move_paragraph(rng: random.Random) -> Draft:
    """Cut here, paste there."""
    path, (title, first, *others) = _writer(rng, 3)
    return _written(
        "Move the paragraph below the title to the end of the document and save the file.",
        path,
        [title, first, *others],
        like_gold("compare_docx_files", path, docx([title, *others, first])),
        [
            press("ctrl", "home", to="go to the title"),
            press("down", to="go to the paragraph below"),
            press("shift", "down", to="select it"),
            press("ctrl", "x", to="cut it"),
            press("ctrl", "end", to="go to the end"),
            press("enter", to="begin a paragraph"),
            press("ctrl", "v", to="paste it"),
            *SAVE,
        ],
    )


def rewritten_copy(rng: random.Random) -> Draft:
    """The title replaced, a signature added, under a new name."""
    path, paragraphs = _writer(rng, 2)
    title, signed = f"{rng.choice(COLOURS).capitalize()} {rng.choice(PLACES)}", rng.choice(NAMES).capitalize()
    target = f"{FOLDER}/{rng.choice(PLACES)}.docx"
    name = target.rpartition("/")[2]
    return _written(
        f"Replace the title by {title}, add the name {signed} as the last paragraph, and save the file as {name} in "
        "Documents.",
        path,
        paragraphs,
        like_gold("compare_docx_files", target, docx([title, *paragraphs[1:], signed]), ignore_blanks=False),
        [
            press("ctrl", "home", to="go to the title"),
            press("shift", "end", to="select it"),
            write(title),
            # Typing for the first time holds Writer up, and it runs shortcuts late: on a busy machine the keys behind
            # a shortcut overtook it (three episodes of 25).
            wait(2, "the title is there"),
            press("ctrl", "end", to="go to the end"),
            press("enter", to="begin a paragraph"),
            write(signed),
            *save_as(target),
        ],
    )
