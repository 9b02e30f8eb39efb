"""Tasks in LibreOffice Calc."""

import random

from flywheel.packs.documents import column, xlsx
from flywheel.packs.draft import Draft, Json, cells, infeasible, press, write
from flywheel.packs.offline.office import FOLDER, SAVE, launch, save_as
from flywheel.packs.words import MONTHS, PLACES, THINGS, some


def _go(place: str) -> list[Json]:
    return [
        press("ctrl", "shift", "t", to="go to the name box"),
        write(place),
        press("enter", to="select it"),
    ]


def _stock(rng: random.Random) -> tuple[str, list[list[str | int]]]:
    """Path and rows: item, price, count."""
    rows: list[list[str | int]] = [["item", "price", "count"]]
    rows += [[thing, rng.randint(2, 30), rng.randint(1, 20)] for thing in some(rng, THINGS, rng.randint(4, 7))]
    return f"{FOLDER}/{rng.choice(PLACES)}.xlsx", rows


def _calc(instruction: str, path: str, rows: list[list[str | int]], judge: Json, solution: list[Json]) -> Draft:
    name = path.rpartition("/")[2]
    return Draft(instruction, judge, solution, launch("calc", path), name, {path: xlsx(rows)})


def fill_cell(rng: random.Random) -> Draft:
    """One number into one cell."""
    path, rows = _stock(rng)
    place, number = f"{column(rng.randint(4, 6))}{rng.randint(2, 8)}", rng.randint(10, 999)
    return _calc(
        f"Type {number} into cell {place} and save the file.",
        path,
        rows,
        cells(path, {place: {"value": number}, "A1": {"value": "item"}}),
        [*_go(place), write(str(number)), press("enter", to="fill the cell"), *SAVE],
    )


def bold_header(rng: random.Random) -> Draft:
    """The first row, and only it."""
    path, rows = _stock(rng)
    wanted = {f"{column(c)}1": {"font_bold": True} for c in range(3)}
    return _calc(
        "Make the cells A1 to C1 bold and save the file.",
        path,
        rows,
        cells(path, {**wanted, "A2": {"font_bold": False}}),
        [*_go("A1:C1"), press("ctrl", "b", to="make it bold"), *SAVE],
    )


def total(rng: random.Random) -> Draft:
    """A formula over a column."""
    path, rows = _stock(rng)
    function, words = rng.choice((("SUM", "sum"), ("MAX", "largest"), ("MIN", "smallest"), ("AVERAGE", "average")))
    counts = [int(row[2]) for row in rows[1:]]
    value = {"SUM": sum(counts), "MAX": max(counts), "MIN": min(counts), "AVERAGE": sum(counts) / len(counts)}[function]
    place = f"C{len(rows) + 2}"
    return _calc(
        f"Calculate the {words} of the counts in column C into cell {place} and save the file.",
        path,
        rows,
        cells(path, {place: {"value": value}}),
        [*_go(place), write(f"={function}(C2:C{len(rows)})"), press("enter", to="fill the cell"), *SAVE],
    )


def products(rng: random.Random) -> Draft:
    """A new column, each row from its own."""
    path, rows = _stock(rng)
    last = len(rows)
    wanted = {f"D{r}": {"value": int(row[1]) * int(row[2])} for r, row in enumerate(rows[1:], 2)}
    return _calc(
        "Type value into D1, fill column D below it with price times count for every item, and save the file.",
        path,
        rows,
        cells(path, {"D1": {"value": "value"}, **wanted}),
        [
            *_go("D1"),
            write("value"),
            press("enter", to="fill the cell"),
            *_go(f"D2:D{last}"),
            write("=B2*C2"),
            press("alt", "enter", to="fill all selected cells"),
            *SAVE,
        ],
    )


def copy_with_total(rng: random.Random) -> Draft:
    """A formula over two columns, under a new name."""
    path, rows = _stock(rng)
    target = f"{FOLDER}/{rng.choice(MONTHS)}.xlsx"
    value = sum(int(row[1]) * int(row[2]) for row in rows[1:])
    place = f"B{len(rows) + 2}"
    name = target.rpartition("/")[2]
    return _calc(
        f"Calculate the value of the whole stock, price times count over all items, into {place} and save the file as "
        f"{name} in Documents.",
        path,
        rows,
        cells(target, {place: {"value": value}}),
        [
            *_go(place),
            write(f"=SUMPRODUCT(B2:B{len(rows)},C2:C{len(rows)})"),
            press("enter", to="fill the cell"),
            *save_as(target),
        ],
    )


def missing_sheet(rng: random.Random) -> Draft:
    """The book has one sheet, and it is another."""
    path, rows = _stock(rng)
    sheet = rng.choice(MONTHS).capitalize()
    instruction = f"Copy the third value of the sheet {sheet} into cell F1 and save the file."
    return _calc(instruction, path, rows, infeasible(), [press("ctrl", "pagedown", to="look for another sheet")])
