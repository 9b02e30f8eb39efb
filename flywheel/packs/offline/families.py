"""The families of the offline pack: which application, how difficult, how made."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from flywheel.packs.draft import Draft
from flywheel.packs.offline import browser, calc, editor, files, impress, pictures, terminal, writer

CALC, WRITER, IMPRESS = "libreoffice_calc", "libreoffice_writer", "libreoffice_impress"


@dataclass(frozen=True, slots=True)
class Family:
    """`app` is OSWorld's name of the application. Levels: 1 one thing to do, 2 two or three, 3 several, or one that
    has to be found out, 4 several that build on each other."""

    app: str
    level: int
    make: Callable[[random.Random], Draft]


_BY_APP: dict[str, list[tuple[int, Callable[[random.Random], Draft]]]] = {
    "terminal": [
        (1, terminal.make_folder),
        (1, terminal.write_line),
        (2, terminal.count_lines),
        (3, terminal.rename_all),
        (4, terminal.sum_column),
        (2, terminal.missing_file),
    ],
    "text_editor": [
        (1, editor.type_text),
        (2, editor.append_line),
        (2, editor.delete_line),
        (3, editor.move_line),
        (3, editor.save_as),
    ],
    "file_manager": [(1, files.new_folder), (1, files.rename), (2, files.delete), (3, files.move), (4, files.collect)],
    CALC: [
        (1, calc.fill_cell),
        (2, calc.bold_header),
        (2, calc.total),
        (3, calc.products),
        (4, calc.copy_with_total),
        (3, calc.missing_sheet),
    ],
    WRITER: [
        (1, writer.add_paragraph),
        (2, writer.centre_title),
        (2, writer.page_break),
        (3, writer.move_paragraph),
        (4, writer.rewritten_copy),
    ],
    IMPRESS: [(2, impress.retitle), (1, impress.add_slide), (3, impress.retitle_another), (4, impress.retitle_and_add)],
    "chrome": [
        (1, browser.press_button),
        (2, browser.fill_form),
        (2, browser.bookmark),
        (3, browser.order),
        (4, browser.look_up),
        (2, browser.missing_button),
    ],
    "gimp": [
        (2, pictures.mirror),
        (2, pictures.upside_down),
        (3, pictures.quarter_turn),
        (4, pictures.turn_and_mirror),
    ],
}

FAMILIES: dict[str, Family] = {
    f"{app}/{make.__name__}": Family(app, level, make) for app, made in _BY_APP.items() for level, make in made
}
"""`application/family` -> family."""
