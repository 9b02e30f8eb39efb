"""Tasks in GIMP. Its command search, `/`, finds every action by its words."""

import random

from flywheel.packs.documents import Colour, png
from flywheel.packs.draft import HOME, Draft, Json, either, file_by, like_gold, press, prints, wait, write
from flywheel.packs.words import PLACES

_FOLDER = f"{HOME}/Pictures"
_PLUG_INS = "/usr/lib/gimp/2.0/plug-ins"
_SESSION = """(session-info "toplevel"
    (factory-entry "gimp-single-image-window")
    (position 0 0)
    (size 640 400)
    (open-on-exit)
    (aux-info
        (left-docks-width "0")
        (right-docks-position "0")
        (maximized "yes")))
(hide-docks yes)
(single-window-mode yes)
(show-tabs yes)
(tabs-position 0)
(last-tip-shown 0)
"""
# A fresh home makes GIMP ask all of its 150 plug-ins what they do, 20 s on a busy machine: two that read and write the
# pictures are enough. The outline of the picture does not march, so that the screen comes to rest.
_SETTINGS = f'(plug-in-path "{_PLUG_INS}/file-png:{_PLUG_INS}/file-jpeg")\n(marching-ants-speed 10000)\n'
_CORNERS = (
    "from PIL import Image; p = Image.open('{path}').convert('RGB'); w, h = p.size; "
    "print(w, h, *(sum(p.getpixel(at)) for at in ((4, 4), (w - 5, 4), (4, h - 5))))"
)
"""Size, then the brightness of three corners, 0 to 765."""


def _search(words: str) -> list[Json]:
    return [
        write("/", "/ to search for a command"),
        wait(1, "the search is there"),
        write(words),
        wait(1, "the command is found"),
        press("enter", to="run it"),
        wait(1, "it is done"),
    ]


class _Picture:
    """Four fields of different brightness, `corners` from the upper left to the lower right."""

    def __init__(self, rng: random.Random) -> None:
        self.path = f"{_FOLDER}/{rng.choice(PLACES)}.png"
        self.width, self.height = rng.randrange(120, 200, 20), rng.randrange(60, 120, 20)
        shades = rng.sample(range(0, 256, 24), 4)
        self.colours: list[Colour] = [(shade, 255 - shade, rng.choice((0, shade))) for shade in shades]
        self.corners = [sum(colour) for colour in self.colours]
        self.image = png(
            self.width,
            self.height,
            lambda x, y: self.colours[(2 if y * 2 >= self.height else 0) + (x * 2 >= self.width)],
        )

    def task(self, instruction: str, judge: Json, *commands: str) -> Draft:
        """The picture in GIMP; what the commands made of it goes over its file."""
        files: dict[str, str | bytes] = {
            self.path: self.image,
            f"{HOME}/.config/GIMP/2.10/sessionrc": _SESSION,
            f"{HOME}/.config/GIMP/2.10/gimprc": _SETTINGS,
        }
        launch = ("gimp", "--no-splash", "--no-data", "--no-fonts", self.path)
        words = f"{instruction} Write the result over {self.path.rpartition('/')[2]}."
        solution = [step for command in (*commands, "overwrite") for step in _search(command)]
        return Draft(words, judge, solution, launch, "imported", files)

    def corners_are(self, width: int, height: int, *corners: int) -> Json:
        script = _CORNERS.replace("{path}", self.path)
        return prints(f'python3 -c "{script}"', " ".join(str(number) for number in (width, height, *corners)))


def mirror(rng: random.Random) -> Draft:
    """Left and right change places."""
    picture = _Picture(rng)
    judge = like_gold("check_image_mirror", picture.path, picture.image)
    return picture.task("Mirror the image horizontally.", judge, "flip image horizontally")


def upside_down(rng: random.Random) -> Draft:
    """Top and bottom change places."""
    picture = _Picture(rng)
    upper_left, _, lower_left, lower_right = picture.corners
    judge = picture.corners_are(picture.width, picture.height, lower_left, lower_right, upper_left)
    return picture.task("Flip the image vertically.", judge, "flip image vertically")


def quarter_turn(rng: random.Random) -> Draft:
    """Width and height change places as well."""
    picture = _Picture(rng)
    upper_left, _, lower_left, lower_right = picture.corners
    judge = either(
        [
            picture.corners_are(picture.height, picture.width, lower_left, upper_left, lower_right),
            file_by("check_image_size", picture.path, width=picture.height, height=picture.width),
        ],
        "and",
    )
    return picture.task("Rotate the image 90 degrees clockwise.", judge, "rotate the image 90 degrees to the right")


def turn_and_mirror(rng: random.Random) -> Draft:
    """Two steps in their order."""
    picture = _Picture(rng)
    upper_left, upper_right, lower_left, _ = picture.corners
    judge = picture.corners_are(picture.height, picture.width, upper_left, lower_left, upper_right)
    return picture.task(
        "Rotate the image 90 degrees clockwise, then mirror it horizontally.",
        judge,
        "rotate the image 90 degrees to the right",
        "flip image horizontally",
    )
