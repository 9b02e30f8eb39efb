"""Tasks in LibreOffice Impress."""

import random
import shlex

from flywheel.packs.documents import pptx
from flywheel.packs.draft import Draft, Json, press, prints, wait, write
from flywheel.packs.offline.office import FOLDER, SAVE, launch
from flywheel.packs.words import COLOURS, MONTHS, NAMES, PLACES, THINGS, some

_TITLES = (
    "import re, sys, zipfile\n"
    "deck = zipfile.ZipFile(sys.argv[1])\n"
    "names = [n for n in deck.namelist() if re.fullmatch('ppt/slides/slide[0-9]+.xml', n)]\n"
    "for name in sorted(names, key=lambda n: int(re.findall('[0-9]+', n)[0])):\n"
    "    print(' '.join(re.findall('<a:t>(.*?)</a:t>', deck.read(name).decode())))\n"
)

_NEXT_SLIDE, _SHOWN = press("pagedown", to="go to the next slide"), wait(2, "it is shown")
# Impress changes slides when it is idle: keys that come earlier go to the slide before.


def _deck(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    titles = some(rng, PLACES, 3)
    slides = [(title.capitalize(), rng.choice(THINGS)) for title in titles]
    return f"{FOLDER}/{rng.choice(NAMES)}.pptx", slides


def _shown(instruction: str, path: str, before: list[tuple[str, str]], after: list[str], solution: list[Json]) -> Draft:
    """`after` holds all the words of each slide."""
    judge = prints(f"python3 -c {shlex.quote(_TITLES)} {path}", "\n".join(after))
    name = path.rpartition("/")[2]
    return Draft(instruction, judge, [*solution, *SAVE], launch("impress", path), name, {path: pptx(before)}, idle=True)


def _edit_title(text: str) -> list[Json]:
    """F2 does nothing until Impress, once it is idle, has noticed that something is selected."""
    return [
        press("tab", to="select the title"),
        wait(1.5, "it is selected"),
        press("f2", to="edit it"),
        wait(1, "the cursor is in it"),
        press("ctrl", "a", to="select the old title"),
        write(text),
        press("esc", to="end editing"),
    ]


def retitle(rng: random.Random) -> Draft:
    """The first slide."""
    path, slides = _deck(rng)
    new = f"{rng.choice(COLOURS).capitalize()} {rng.choice(THINGS)}"
    after = [f"{new} {slides[0][1]}", *(" ".join(slide) for slide in slides[1:])]
    return _shown(
        f"Change the title of the first slide to {new} and save the file.", path, slides, after, _edit_title(new)
    )


def retitle_another(rng: random.Random) -> Draft:
    """The second or third slide."""
    path, slides = _deck(rng)
    number = rng.choice((1, 2))
    new = f"{rng.choice(COLOURS).capitalize()} {rng.choice(THINGS)}"
    after = [" ".join(slide) for slide in slides]
    after[number] = f"{new} {slides[number][1]}"
    words = ("second", "third")[number - 1]
    instruction = f"Change the title of the {words} slide to {new} and save the file."
    down = [_NEXT_SLIDE, _SHOWN] * number
    return _shown(instruction, path, slides, after, [*down, *_edit_title(new)])


def add_slide(rng: random.Random) -> Draft:
    """An empty one, behind the slide that is shown."""
    path, slides = _deck(rng)
    number = rng.choice((1, 2, 3))
    words = [" ".join(slide) for slide in slides]
    place = ("first", "second", "third")[number - 1]
    down = [_NEXT_SLIDE, _SHOWN] * (number - 1)
    return _shown(
        f"Add an empty slide after the {place} slide and save the file.",
        path,
        slides,
        [*words[:number], "", *words[number:]],
        [*down, press("ctrl", "m", to="add a slide")],
    )


def retitle_and_add(rng: random.Random) -> Draft:
    """A new title, then an empty slide behind it."""
    path, slides = _deck(rng)
    new = f"{rng.choice(MONTHS).capitalize()} {rng.choice(THINGS)}"
    words = [" ".join(slide) for slide in slides]
    return _shown(
        f"Change the title of the first slide to {new}, add an empty slide after it, and save the file.",
        path,
        slides,
        [f"{new} {slides[0][1]}", "", *words[1:]],
        [
            *_edit_title(new),
            press("esc", to="select nothing"),
            wait(1, "nothing is selected"),
            press("ctrl", "m", to="add a slide"),
        ],
    )
