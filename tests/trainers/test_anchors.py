"""Same screen up to a blinking cursor, same anchor; another state of a widget, another anchor."""

import asyncio

import numpy as np
import pytest

from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.trainers.anchors import CURSOR_HEIGHT, anchor, without_cursor
from flywheel.types import Click, Screenshot, Type
from tests.tiny import SCREEN, some_tasks


def screens(family: str, *actions_at: object) -> list[Screenshot]:
    """What is seen at the start, and after each action."""

    async def play() -> list[Screenshot]:
        env = SimulatedEnv(SCREEN)
        (task,) = some_tasks(1, families=(family,))
        seen = [await env.reset(task)]
        seen += [(await env.step(action)).observation for action in actions_at]  # type: ignore[arg-type]
        await env.close()
        return [look.screenshot for look in seen if look.screenshot]

    return asyncio.run(play())


def with_cursor(screen: Screenshot, x: int, y: int, *, width: int = 1, height: int = 16) -> Screenshot:
    pixels = screen.array().copy()
    background = int(pixels[y, x].mean())
    pixels[y : y + height, x : x + width] = 0 if background > 127 else 255
    return Screenshot.from_array(pixels)


def blank(width: int = 64, height: int = 48) -> Screenshot:
    return Screenshot.from_array(np.full((height, width, 3), 240, np.uint8))


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("family", ["click", "type", "check"])
def test_a_blinking_cursor_makes_no_difference(family: str, width: int) -> None:
    (screen,) = screens(family)
    for x, y in ((3, 3), (SCREEN.width // 2, 5), (SCREEN.width - 5, SCREEN.height - 20)):
        flat = screen.array()[y : y + 16, x - 2 : x + 4]
        if flat.std() < 1:  # on a plain ground, as cursors stand
            assert anchor(with_cursor(screen, x, y, width=width)) == anchor(screen)


def test_every_widget_that_changes_makes_another_anchor() -> None:
    """Wherever somebody clicks: the screen is the same bytes, or it has another anchor."""
    cells = [Click(x, y) for x in range(16, SCREEN.width, 32) for y in range(16, SCREEN.height, 32)]
    for family in ("check", "menu", "dialog"):
        seen = screens(family, *cells)
        assert len({anchor(screen) for screen in seen}) == len({screen.sha256 for screen in seen}) > 1


def test_typed_letters_make_another_anchor() -> None:
    for x in range(16, SCREEN.width, 32):
        for y in range(16, SCREEN.height, 32):
            *_, focused, written = screens("type", Click(x, y), Type("o"))
            if focused.sha256 != written.sha256:
                assert anchor(focused) != anchor(written)
                return
    pytest.fail("no field took a letter")


def test_short_and_wide_marks_are_no_cursors() -> None:
    screen = blank()
    assert anchor(with_cursor(screen, 20, 8, height=CURSOR_HEIGHT - 1)) != anchor(screen)
    assert anchor(with_cursor(screen, 20, 8, width=4)) != anchor(screen)


def test_what_is_painted_over_is_the_line_alone() -> None:
    grey = np.full((40, 40), 200, np.int16)
    grey[5:30, 12] = 0
    grey[5:30, 30:36] = 90
    clean = without_cursor(grey)
    assert (clean[:, 12] == 200).all()
    assert (clean[:, 30:36] == grey[:, 30:36]).all()


def test_size_counts_and_no_screen_has_no_anchor() -> None:
    assert anchor(blank(64, 48)) != anchor(blank(48, 64))
    assert anchor(None) == ""
    assert anchor(Screenshot.from_array(np.zeros((4, 4, 3), np.uint8))) != ""
