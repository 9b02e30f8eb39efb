"""Tasks in a terminal."""

import random

from flywheel.packs.draft import HOME, Draft, file_says, infeasible, press, prints, write
from flywheel.packs.words import COLOURS, MONTHS, NAMES, PLACES, THINGS, some

_LAUNCH, _TITLE = ("xterm",), "xterm"


def _run(command: str) -> list[dict[str, object]]:
    return [write(command), press("enter", to="run it")]


def make_folder(rng: random.Random) -> Draft:
    """One command with one argument."""
    name = f"{rng.choice(COLOURS)}-{rng.choice(PLACES)}"
    return Draft(
        f"Make a folder named {name} in the home folder.",
        prints(f"test -d {HOME}/{name} && echo yes", "yes"),
        _run(f"mkdir {name}"),
        _LAUNCH,
        _TITLE,
    )


def write_line(rng: random.Random) -> Draft:
    """Output into a file."""
    name, (first, second) = rng.choice(PLACES), some(rng, THINGS, 2)
    return Draft(
        f"Write the line {first} {second} into the file {name}.txt in the home folder.",
        file_says(f"{HOME}/{name}.txt", f"{first} {second}\n", f"{first} {second}"),
        _run(f"echo {first} {second} > {name}.txt"),
        _LAUNCH,
        _TITLE,
    )


def count_lines(rng: random.Random) -> Draft:
    """A filter over a file, its answer in another."""
    wanted, other, third = some(rng, NAMES, 3)
    lines = [f"{rng.choice(MONTHS)} {rng.choice((wanted, wanted, other, third))}" for _ in range(rng.randint(9, 16))]
    number = sum(wanted in line for line in lines)
    return Draft(
        f"Count the lines with {wanted} in visits.txt and write the number into count.txt.",
        file_says(f"{HOME}/count.txt", f"{number}\n", str(number)),
        _run(f"grep -c {wanted} visits.txt > count.txt"),
        _LAUNCH,
        _TITLE,
        {f"{HOME}/visits.txt": "\n".join(lines) + "\n"},
    )


def rename_all(rng: random.Random) -> Draft:
    """A loop over files."""
    folder, things = rng.choice(PLACES), sorted(some(rng, THINGS, 3))
    old, new = some(rng, ("txt", "log", "md", "dat"), 2)
    listed = "\n".join([*(f"{thing}.{new}" for thing in things), "keep.sh"])
    return Draft(
        f"In the folder {folder}, change the ending of every .{old} file to .{new}.",
        prints(f"ls {HOME}/{folder} | grep -v keep; ls {HOME}/{folder} | grep keep", listed),
        _run(f"cd {folder} && for f in *.{old}; do mv $f ${{f%.{old}}}.{new}; done"),
        _LAUNCH,
        _TITLE,
        {f"{HOME}/{folder}/{thing}.{old}": f"{thing}\n" for thing in things} | {f"{HOME}/{folder}/keep.sh": "true\n"},
    )


def sum_column(rng: random.Random) -> Draft:
    """Arithmetic over the lines that match."""
    wanted, other = some(rng, COLOURS, 2)
    rows = [(rng.choice(THINGS), rng.choice((wanted, other)), rng.randint(1, 40)) for _ in range(rng.randint(8, 12))]
    rows.append((rng.choice(THINGS), wanted, rng.randint(1, 40)))
    total = sum(count for _, colour, count in rows if colour == wanted)
    table = "item,colour,count\n" + "".join(f"{item},{colour},{count}\n" for item, colour, count in rows)
    return Draft(
        f"Add up the counts of all {wanted} items in stock.csv and write the sum into total.txt.",
        file_says(f"{HOME}/total.txt", f"{total}\n", str(total)),
        _run(f"awk -F, '$2==\"{wanted}\" {{s+=$3}} END {{print s}}' stock.csv > total.txt"),
        _LAUNCH,
        _TITLE,
        {f"{HOME}/stock.csv": table},
    )


def missing_file(rng: random.Random) -> Draft:
    """The file that is asked about is not there: looked for, then given up."""
    there, absent = some(rng, PLACES, 2)
    return Draft(
        f"Print the second line of the file {absent}.txt into answer.txt.",
        infeasible(),
        _run("find / -name " + f"{absent}.txt 2>/dev/null"),
        _LAUNCH,
        _TITLE,
        {f"{HOME}/{there}.txt": "one\ntwo\n"},
    )
