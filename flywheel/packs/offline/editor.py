"""Tasks in a text editor (mousepad)."""

import random

from flywheel.packs.draft import HOME, Draft, Json, file_says, press, wait, write
from flywheel.packs.words import NAMES, PLACES, THINGS, sentence, some

_FOLDER = f"{HOME}/Documents"
_SAVE = press("ctrl", "s", to="save the file")


def _editor(name: str, before: str, instruction: str, after: str, solution: list[Json]) -> Draft:
    """The file, then what it must say; the last line break is free."""
    path = f"{_FOLDER}/{name}"
    return Draft(
        instruction,
        file_says(path, after + "\n", after),
        [*solution, _SAVE],
        ("mousepad", path),
        name,
        {path: before},
    )


def type_text(rng: random.Random) -> Draft:
    """Into an empty file."""
    name, words = f"{rng.choice(PLACES)}.txt", " ".join(some(rng, THINGS, 3))
    return _editor(name, "", f"Type {words} into {name} and save it.", words, [write(words)])


def append_line(rng: random.Random) -> Draft:
    """At the end of a list."""
    name, (*there, new) = f"{rng.choice(PLACES)}.txt", some(rng, THINGS, 4)
    return _editor(
        name,
        "\n".join(there) + "\n",
        f"Add the line {new} at the end of {name} and save it.",
        "\n".join([*there, new]),
        [press("ctrl", "end", to="go to the end"), write(new)],
    )


def delete_line(rng: random.Random) -> Draft:
    """One line of several, by its content."""
    name, lines = f"{rng.choice(PLACES)}.txt", some(rng, NAMES, 5)
    index = rng.randrange(1, 4)
    kept = [line for line in lines if line != lines[index]]
    down = [press("down", to="go down a line")] * index
    return _editor(
        name,
        "\n".join(lines) + "\n",
        f"Delete the line {lines[index]} from {name} and save it.",
        "\n".join(kept),
        [
            press("ctrl", "home", to="go to the beginning"),
            *down,
            press("shift", "down", to="select the line"),
            press("delete", to="delete it"),
        ],
    )


def move_line(rng: random.Random) -> Draft:
    """Cut here, paste there."""
    name, lines = f"{rng.choice(PLACES)}.txt", some(rng, THINGS, 4)
    return _editor(
        name,
        "\n".join(lines) + "\n",
        f"Move the first line of {name} to the end and save it.",
        "\n".join([*lines[1:], lines[0]]),
        [
            press("ctrl", "home", to="go to the beginning"),
            press("shift", "down", to="select the first line"),
            press("ctrl", "x", to="cut it"),
            press("ctrl", "end", to="go to the end"),
            press("ctrl", "v", to="paste it"),
        ],
    )


def save_as(rng: random.Random) -> Draft:
    """A line added, under a new name; the old file stays as it was."""
    old, new = some(rng, PLACES, 2)
    first, second = sentence(rng), sentence(rng)
    path, target = f"{_FOLDER}/{old}.txt", f"{_FOLDER}/{new}.txt"
    judge = file_says(target, f"{first}\n{second}\n", f"{first}\n{second}")
    return Draft(
        f"Add the line {second} at the end of {old}.txt, and save it as {new}.txt in the same folder.",
        judge,
        [
            press("ctrl", "end", to="go to the end"),
            write(second),
            press("ctrl", "shift", "s", to="save under another name"),
            wait(1, "the dialog is there"),
            press("ctrl", "a", to="select the name"),
            write(f"{new}.txt"),
            press("enter", to="save"),
            wait(1, "it is saved"),
        ],
        ("mousepad", path),
        f"{old}.txt",
        {path: f"{first}\n"},
    )
