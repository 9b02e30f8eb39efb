"""The two virtual environments that real desktops need: `flywheel desktops setup`.

desktop-env pins torch 2.5, transformers 4.35 and numpy below 2, so it can never share an environment with ours. All of
its 54 getters and 136 metrics work without torch, so its closure is pinned in requirements.txt and installed without
its own dependencies: 1.4 GB instead of 6.7. Two packages of ours stand in for what is left out: `pydrive` (renamed
upstream) and `easyocr` (needs torch; three public tasks of 369 use it, and are refused by name).
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flywheel.envs.server.places import desktops_root
from flywheel.errors import InfrastructureError

HERE = Path(__file__).parent
SYSTEM_PYTHON = Path("/usr/bin/python3")
"""Debian's: its packages of the accessibility bus (pyatspi, gi) belong to no other."""

STAND_INS = {
    "pydrive/__init__.py": "",
    "pydrive/auth.py": (
        "def GoogleAuth(*args, **kwargs):\n"
        "    from pydrive2.auth import GoogleAuth as made  # 200 ms that few tasks need\n\n"
        "    return made(*args, **kwargs)\n"
    ),
    "pydrive/drive.py": (
        "class GoogleDriveFile: ...\n\n\n"
        "class GoogleDriveFileList: ...\n\n\n"
        "def GoogleDrive(*args, **kwargs):\n"
        "    from pydrive2.drive import GoogleDrive as made\n\n"
        "    return made(*args, **kwargs)\n"
    ),
    "easyocr/__init__.py": (
        "class Reader:\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        raise RuntimeError('easyocr needs torch and is left out of this environment')\n"
    ),
}
"""Modules that desktop-env imports and this environment does not install."""

Report = Callable[[int, int], None]
"""Called with how many of how many packages are done."""


@dataclass(frozen=True, slots=True)
class Venv:
    """One environment: `stamp` says what it was made of, so that it is made once."""

    name: str
    python: Path
    requirements: Path
    system_packages: bool = False
    stand_ins: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return desktops_root() / self.name

    @property
    def bin_python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> str:
        content = [str(self.python), str(self.system_packages), _read(self.requirements)]
        content += [STAND_INS[name] for name in self.stand_ins]
        return hashlib.sha256("\0".join(content).encode()).hexdigest()

    def ready(self) -> bool:
        """Whether it is there, whole, and runs."""
        mark = self.folder / ".flywheel"
        if not mark.is_file() or mark.read_text() != self.stamp:
            return False
        return _runs(self.bin_python)


def server_venv() -> Venv:
    """The workers'. Raises `InfrastructureError` where this Python is too new for desktop-env."""
    if sys.version_info >= (3, 13):
        newest = shutil.which("python3.12") or shutil.which("python3.11")
        if newest is None:
            raise InfrastructureError("desktop-env runs on Python 3.11 and 3.12 only; install one of them as well.")
        python = Path(newest)
    else:
        python = Path(sys.executable)
    return Venv("server-venv", python, HERE / "requirements.txt", stand_ins=tuple(STAND_INS))


def guest_venv() -> Venv:
    """The in-guest server's. Raises `InfrastructureError` where there is no system Python."""
    if not SYSTEM_PYTHON.exists():
        raise InfrastructureError(f"{SYSTEM_PYTHON} is missing; run `apt-get install python3 python3-pyatspi`.")
    return Venv("guest-venv", SYSTEM_PYTHON, HERE / "guest" / "requirements.txt", system_packages=True)


def build(venv: Venv, report: Report) -> bool:
    """Make it unless it is ready; False when there was nothing to do. Raises `InfrastructureError` in one sentence."""
    with _alone(venv):
        if venv.ready():
            return False
        total = len(_names(venv.requirements))
        report(0, total)
        if not _runs(venv.bin_python):
            shutil.rmtree(venv.folder, ignore_errors=True)
            system = ("--system-site-packages",) if venv.system_packages else ()
            # Debian ships venv without ensurepip; the pip of this environment installs into the other.
            _run([str(venv.python), "-m", "venv", "--without-pip", *system, str(venv.folder)], venv)
        _install(venv, report, total)
        site = _site_packages(venv)
        for name in venv.stand_ins:
            (site / name).parent.mkdir(exist_ok=True)
            (site / name).write_text(STAND_INS[name])
        (venv.folder / ".flywheel").write_text(venv.stamp)
        return True


def _install(venv: Venv, report: Report, total: int) -> None:
    """Both closures are pinned whole. What Debian has of the guest's packages is too old to be taken for installed."""
    ignore = ("--ignore-installed",) if venv.system_packages else ()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(venv.bin_python), "install"]
    command = [*pip, "--progress-bar", "off", "--no-deps", *ignore, "-r", str(venv.requirements)]
    done, tail = 0, ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(("Collecting", "Requirement already")):
                done = min(total, done + 1)
                report(done, total)
            elif line.startswith("ERROR"):
                tail = line.removeprefix("ERROR:").strip()
    if process.returncode:
        raise InfrastructureError(
            f"{venv.folder} could not be filled ({tail.rstrip('.') or f'pip ended with {process.returncode}'}); "
            "see to the network and the disk, then run `flywheel desktops setup` again."
        )


def _run(command: list[str], venv: Venv) -> None:
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines() or [f"status {ended.returncode}"]
        raise InfrastructureError(
            f"{venv.folder} could not be made ({said[-1].rstrip('.')}); "
            f"see that {venv.python} runs and the disk has room, then run `flywheel desktops setup` again."
        )


def _runs(python: Path) -> bool:
    return python.exists() and subprocess.run([str(python), "-c", ""], capture_output=True).returncode == 0


def _site_packages(venv: Venv) -> Path:
    return next((venv.folder / "lib").glob("python3*/site-packages"))


def _names(requirements: Path) -> list[str]:
    return [line for line in _read(requirements).splitlines() if line.strip() and not line.startswith("#")]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be read, so flywheel is not whole; install it again.") from error


@contextmanager
def _alone(venv: Venv) -> Iterator[None]:
    """Two set-ups at once would fill one folder from both sides."""
    try:
        venv.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (venv.folder.parent / f".{venv.name}.lock").open("w")
    except OSError as error:
        raise InfrastructureError(
            f"{venv.folder.parent} cannot be written ({error.strerror}); set FLYWHEEL_DESKTOPS to a folder of yours."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
