"""Where real desktops keep what is theirs, outside the repository and the main virtual environment.

ROOT/server-venv    desktop-env and its evaluators: the Python of the workers
ROOT/guest-venv     the Python of the in-guest server, on top of Debian's own packages
ROOT/cache          downloads that tasks name, `<task id>/<file>`, as desktop-env names them
ROOT/run            folders of running desktops; reaped when a server starts
"""

import os
from pathlib import Path


def desktops_root() -> Path:
    """`$FLYWHEEL_DESKTOPS`, or `~/.cache/flywheel/desktops`."""
    return Path(os.environ.get("FLYWHEEL_DESKTOPS") or "~/.cache/flywheel/desktops").expanduser().absolute()


def server_python() -> Path:
    """The workers' Python; there after `flywheel desktops setup`."""
    return desktops_root() / "server-venv" / "bin" / "python"


def guest_python() -> Path:
    """The in-guest server's Python; there after `flywheel desktops setup`."""
    return desktops_root() / "guest-venv" / "bin" / "python"


def cache_root() -> Path:
    """The offline cache of downloads."""
    return desktops_root() / "cache"
