"""MP4 recordings of the screen, by ffmpeg where it is installed."""

import contextlib
import os
import shutil
import subprocess
import threading
import time

from .errors import RefusedError

FRAMES_A_SECOND = 15
START_SECONDS, STOP_SECONDS = 5.0, 15.0


class Recorder:
    """One recording at a time, into `path`."""

    def __init__(self, display: str, path: str) -> None:
        self._display, self._path = display, path
        self._turn = threading.Lock()
        self._ffmpeg: subprocess.Popen[bytes] | None = None

    def start(self, size: tuple[int, int]) -> None:
        """Returns when frames are being written; raises `RefusedError`."""
        with self._turn:
            if self._ffmpeg is not None and self._ffmpeg.poll() is None:
                raise RefusedError("A recording is in progress; end it first.")
            if shutil.which("ffmpeg") is None:
                raise RefusedError("ffmpeg is not installed in this desktop, so nothing can be recorded.", 501)
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path)
            grab = ["-f", "x11grab", "-draw_mouse", "1", "-framerate", str(FRAMES_A_SECOND)]
            picture = ["-video_size", f"{size[0]}x{size[1]}", "-i", self._display]
            code = ["-c:v", "libx264", "-preset", "ultrafast", "-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2"]
            self._ffmpeg = subprocess.Popen(
                ["ffmpeg", "-y", "-loglevel", "error", *grab, *picture, *code, "-pix_fmt", "yuv420p", self._path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._await_first_frames(self._ffmpeg)

    def end(self) -> str:
        """The path of the finished file; raises `RefusedError`."""
        with self._turn:
            ffmpeg, self._ffmpeg = self._ffmpeg, None
            if ffmpeg is None or ffmpeg.poll() is not None:
                raise RefusedError("No recording is in progress; start one first.")
            try:
                ffmpeg.communicate(b"q", timeout=STOP_SECONDS)  # ffmpeg's own key; writes the index of the MP4
            except subprocess.TimeoutExpired as error:
                ffmpeg.kill()
                ffmpeg.wait()
                raise RefusedError("ffmpeg did not end the recording in time; it was killed.", 500) from error
            if not os.path.isfile(self._path) or os.path.getsize(self._path) == 0:
                raise RefusedError("ffmpeg recorded nothing; is the disk of the desktop full?", 500)
            return self._path

    def abandon(self) -> None:
        """Kill a recording that nobody wants."""
        with self._turn:
            if self._ffmpeg is not None:
                self._ffmpeg.kill()
                self._ffmpeg.wait()
                self._ffmpeg = None

    def _await_first_frames(self, ffmpeg: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if ffmpeg.poll() is not None:
                raise RefusedError(f"ffmpeg ended with status {ffmpeg.returncode} instead of recording.", 500)
            if os.path.isfile(self._path):
                return
            time.sleep(0.05)
        raise RefusedError(f"ffmpeg wrote nothing within {START_SECONDS:.0f} s.", 500)
