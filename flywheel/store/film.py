"""A trajectory as a film: one turn after another, its action drawn in and written below, encoded by ffmpeg."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

from flywheel.errors import ConfigError, StoreError
from flywheel.store.drawing import BACKGROUND, BAD, DIM, INK, NOTHING, draw_mark, draw_words, picture_of
from flywheel.store.marks import Mark, caption, marks
from flywheel.store.viewer import verdict
from flywheel.types import Trajectory, Turn

TURN_SECONDS = 1.0
_LEAST_WIDTH = 640
"""Smaller screens are enlarged, by whole pixels, as long as neither side gets longer than this."""
_FRAMES_A_SECOND = 10
"""Players seek by frames, and some of them show nothing at one frame a second."""


class _Layout(NamedTuple):
    """Pixels. The words stand below the screen in two lines of `line`; H.264 wants even sizes."""

    width: int
    screen: int
    line: int

    @property
    def height(self) -> int:
        return self.screen + 2 * self.line


def write_film(trajectory: Trajectory, path: Path) -> None:
    """An MP4 (H.264) of `TURN_SECONDS` a turn; appears whole or not at all.

    Raises `ConfigError` without ffmpeg, `StoreError` when there is no turn or ffmpeg fails, `CorruptTrajectoryError`
    when a screenshot cannot be decoded.
    """
    if (ffmpeg := shutil.which("ffmpeg")) is None:
        raise ConfigError("A film needs ffmpeg, which is not installed; run `apt-get install ffmpeg`.")
    if not trajectory.turns:
        raise StoreError(f"Trajectory '{trajectory.id}' has no turns, so there is nothing to film.")
    layout = _layout(trajectory)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _encode(ffmpeg, layout, _frames(trajectory, layout), staged)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _layout(trajectory: Trajectory) -> _Layout:
    shots = [turn.observation.screenshot for turn in trajectory.turns if turn.observation.screenshot is not None]
    width = max((shot.width for shot in shots), default=_LEAST_WIDTH)
    height = max((shot.height for shot in shots), default=_LEAST_WIDTH * 3 // 4)
    times = max(1, _LEAST_WIDTH // max(width, height))
    whole = max(_LEAST_WIDTH, _even(width * times))
    return _Layout(whole, _even(height * times), max(22, whole // 50))


def _even(pixels: int) -> int:
    return pixels + pixels % 2


def _frames(trajectory: Trajectory, layout: _Layout) -> Iterator[Image.Image]:
    title = f"{verdict(trajectory)} · {trajectory.task.instruction}"
    for number, (turn, mark) in enumerate(zip(trajectory.turns, marks(trajectory.turns), strict=True)):
        frame = Image.new("RGB", (layout.width, layout.height), BACKGROUND)
        frame.paste(_screen(trajectory.id, number, turn, mark, layout), (0, 0))
        draw = ImageDraw.Draw(frame)
        words = f"{number + 1}/{len(trajectory.turns)}  {caption(turn.action)}"
        words = f"{words}: {turn.error}" if turn.error else words
        margin, size, room = layout.line // 4, layout.line * 2 // 3, layout.width - layout.line // 2
        draw_words(draw, (margin, layout.screen + margin // 2), words, room, BAD if turn.error else INK, size)
        draw_words(draw, (margin, layout.screen + layout.line), title, room, DIM, size)
        yield frame


def _screen(trajectory_id: str, number: int, turn: Turn, mark: Mark | None, layout: _Layout) -> Image.Image:
    """What the turn saw, as large as it fits, with its action."""
    picture = picture_of(trajectory_id, number, turn.observation.screenshot)
    if picture is None:
        return Image.new("RGB", (layout.width, layout.screen), NOTHING)
    scale = min(layout.width / picture.width, layout.screen / picture.height)
    scale = int(scale) if scale >= 1 else scale
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.NEAREST)
    if mark is not None:
        draw_mark(picture, mark, scale, layout.width / _LEAST_WIDTH)
    return picture


def _encode(ffmpeg: str, layout: _Layout, frames: Iterator[Image.Image], path: Path) -> None:
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{layout.width}x{layout.height}"]
    source += ["-framerate", f"{1 / TURN_SECONDS:g}", "-i", "pipe:0"]
    target = ["-r", str(_FRAMES_A_SECOND), "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    command = [ffmpeg, "-v", "error", "-y", *source, *target, "-f", "mp4", str(path)]
    with tempfile.TemporaryFile() as said:
        encoder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
        assert encoder.stdin is not None
        try:
            with encoder.stdin as pipe:
                for frame in frames:
                    pipe.write(frame.tobytes())
        except BrokenPipeError:
            pass  # it says below why it ended
        except BaseException:
            encoder.kill()
            raise
        finally:
            status = encoder.wait()
        if status:
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines()
            raise StoreError(f"ffmpeg could not make the film: {words[-1] if words else f'it ended with {status}'}.")
