"""Screenshots against scrot's, which is the picture that OSWorld's own server takes."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.envs.server.guest.desk import HEIGHT, WIDTH, Desk, Witness


def _shot(desk: Desk, path: str, **params: object) -> tuple[Image.Image, str]:
    answer = desk.get(path, **params)
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content)), answer.headers["content-type"]


def _scrot(desk: Desk, tmp_path: Path) -> np.ndarray:
    desk.output("scrot", "--overwrite", str(tmp_path / "truth.png"))
    return np.asarray(Image.open(tmp_path / "truth.png").convert("RGB")).astype(int)


@pytest.mark.parametrize("path", ["/screenshot", "/v1/screenshot", "/v1/screenshot?format=webp"])
def test_lossless_pictures_have_every_pixel(desk: Desk, witness: Witness, tmp_path: Path, path: str) -> None:
    desk.act("move", x=WIDTH - 1, y=HEIGHT - 1)  # one pixel of the pointer is left on the screen
    picture, media = _shot(desk, path)
    assert media == ("image/webp" if "webp" in path else "image/png")
    assert picture.mode == "RGB"
    different = np.argwhere(np.asarray(picture).astype(int) != _scrot(desk, tmp_path))
    assert {tuple(each[:2]) for each in different} <= {(HEIGHT - 1, WIDTH - 1)}
    assert picture.getpixel((witness.x + 60, witness.y + 60)) == (255, 0, 0)
    assert picture.getpixel((witness.x + 120, witness.y + 60)) == (0, 255, 0)
    assert picture.getpixel((witness.x + 300, witness.y + 60)) == (0x12, 0x34, 0x56)


def test_a_jpeg_is_close_and_smaller_with_less_quality(desk: Desk, witness: Witness, tmp_path: Path) -> None:
    desk.act("move", x=WIDTH - 1, y=HEIGHT - 1)
    picture, media = _shot(desk, "/v1/screenshot", format="jpeg", quality=95)
    assert media == "image/jpeg"
    off = np.abs(np.asarray(picture).astype(int) - _scrot(desk, tmp_path))
    assert off.mean() < 1.0
    sizes = [len(desk.get("/v1/screenshot", format="jpeg", quality=each).content) for each in (20, 90)]
    assert sizes[0] < sizes[1]


def test_the_pointer_is_drawn_where_it_is(desk: Desk, witness: Witness, tmp_path: Path) -> None:
    x, y = witness.x + 200, witness.y + 200
    desk.act("move", x=x, y=y)
    picture = np.asarray(_shot(desk, "/screenshot")[0]).astype(int)
    rows, columns, _ = np.nonzero(picture != _scrot(desk, tmp_path))
    assert len(rows) > 20
    assert y <= rows.min() < y + 8
    assert x <= columns.min() < x + 8
    assert rows.max() < y + 64
    assert columns.max() < x + 64


@pytest.mark.parametrize("query", [{"format": "gif"}, {"format": "jpeg", "quality": "0"}, {"quality": "many"}])
def test_unknown_formats_are_refused(desk: Desk, query: dict[str, str]) -> None:
    assert desk.get("/v1/screenshot", **query).status_code == 400


def test_the_screen_has_the_size_it_says(desk: Desk) -> None:
    assert desk.post("/screen_size").json() == {"width": WIDTH, "height": HEIGHT}
    assert _shot(desk, "/screenshot")[0].size == (WIDTH, HEIGHT)
