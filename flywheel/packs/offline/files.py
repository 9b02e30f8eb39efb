"""Tasks in a file manager (pcmanfm). A name that is typed selects its file."""

import random

from flywheel.packs.draft import HOME, Draft, Json, press, prints, write
from flywheel.packs.words import COLOURS, PLACES, THINGS, some

_FOLDER = f"{HOME}/Documents"
_ENDINGS = ("txt", "md", "csv")


def _manager(instruction: str, files: list[str], after: list[str], solution: list[Json]) -> Draft:
    """Files under the folder, then all of them as they must be, folders with a slash at their end."""
    listing = f"cd {_FOLDER} && find . -mindepth 1 -printf '%P%y\\n' | sed 's/d$/\\//; s/f$//' | LC_ALL=C sort"
    contents = {f"{_FOLDER}/{name}": f"{name}\n" for name in files}
    judge = prints(listing, "\n".join(sorted(after)))
    return Draft(instruction, judge, solution, ("pcmanfm", _FOLDER), "Documents", contents)


def _select(name: str) -> list[Json]:
    return [write(name.partition(".")[0], name), press("esc", to="leave the search with the file selected")]


def _go(folder: str) -> list[Json]:
    return [
        press("ctrl", "l", to="change the folder"),
        press("ctrl", "a", to="select the old path"),
        write(folder),
        press("enter", to="go there"),
    ]


def new_folder(rng: random.Random) -> Draft:
    """An empty folder beside a file."""
    name, there = rng.choice(PLACES), f"{rng.choice(THINGS)}.txt"
    return _manager(
        f"Make a folder named {name} in Documents.",
        [there],
        [there, f"{name}/"],
        [press("ctrl", "shift", "n", to="make a folder"), write(name), press("enter", to="confirm")],
    )


def rename(rng: random.Random) -> Draft:
    """The ending stays."""
    first, second, other, new = some(rng, THINGS, 4)
    ending = rng.choice(_ENDINGS)
    files = [f"{name}.{ending}" for name in (first, second, other)]
    return _manager(
        f"Rename {first}.{ending} to {new}.{ending}.",
        files,
        [f"{new}.{ending}", *files[1:]],
        [
            *_select(files[0]),
            press("f2", to="rename it"),
            press("ctrl", "a", to="select the old name"),
            write(f"{new}.{ending}"),
            press("enter", to="confirm"),
        ],
    )


def delete(rng: random.Random) -> Draft:
    """Into the trash, which asks."""
    files = [f"{name}.{rng.choice(_ENDINGS)}" for name in some(rng, THINGS, 4)]
    return _manager(
        f"Delete the file {files[2]}.",
        files,
        [*files[:2], files[3]],
        [*_select(files[2]), press("delete", to="delete it"), press("enter", to="confirm")],
    )


def move(rng: random.Random) -> Draft:
    """Into a folder that is there."""
    names, folder = some(rng, THINGS, 3), rng.choice(COLOURS)
    files = [f"{name}.txt" for name in names]
    return _manager(
        f"Move the file {files[1]} into the folder {folder}.",
        [*files, f"{folder}/index.md"],
        [files[0], files[2], f"{folder}/", f"{folder}/index.md", f"{folder}/{files[1]}"],
        [
            *_select(files[1]),
            press("ctrl", "x", to="cut it"),
            *_go(f"{_FOLDER}/{folder}"),
            press("ctrl", "v", to="paste it"),
        ],
    )


def collect(rng: random.Random) -> Draft:
    """A new folder, and a copy in it under another name."""
    names, folder, new = some(rng, THINGS, 2), rng.choice(PLACES), rng.choice(COLOURS)
    files = [f"{name}.txt" for name in names]
    return _manager(
        f"Make a folder named {folder} in Documents, copy {files[0]} into it, and name the copy {new}.txt.",
        files,
        [*files, f"{folder}/", f"{folder}/{new}.txt"],
        [
            press("ctrl", "shift", "n", to="make a folder"),
            write(folder),
            press("enter", to="confirm"),
            press("esc", to="select nothing"),
            *_select(files[0]),
            press("ctrl", "c", to="copy it"),
            *_go(f"{_FOLDER}/{folder}"),
            press("ctrl", "v", to="paste it"),
            *_select(files[0]),
            press("f2", to="rename it"),
            press("ctrl", "a", to="select the old name"),
            write(f"{new}.txt"),
            press("enter", to="confirm"),
        ],
    )
