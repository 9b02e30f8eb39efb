"""Which applications this host has, under the names OSWorld's task files use, and what is missing to run at all."""

import shutil
from pathlib import Path

OFFICE = "/usr/lib/libreoffice/program"

APPS: dict[str, tuple[str, str]] = {
    # name -> a file that only this application installs, its Debian package
    "libreoffice_calc": (f"{OFFICE}/libsclo.so", "libreoffice-calc libreoffice-gtk3"),
    "libreoffice_writer": (f"{OFFICE}/libswlo.so", "libreoffice-writer libreoffice-gtk3"),
    "libreoffice_impress": (f"{OFFICE}/libsdlo.so", "libreoffice-impress libreoffice-gtk3"),
    "chrome": ("/usr/lib/chromium/chromium", "chromium"),
    "gimp": ("/usr/bin/gimp", "gimp"),
    "vlc": ("/usr/bin/vlc", "vlc"),
    "thunderbird": ("/usr/bin/thunderbird", "thunderbird"),
    "vs_code": ("/usr/bin/code", "code"),
    "text_editor": ("/usr/bin/mousepad", "mousepad"),
    "file_manager": ("/usr/bin/pcmanfm", "pcmanfm"),
    "terminal": ("/usr/bin/xterm", "xterm"),
}

ALIASES = {
    alias: name
    for name, aliases in {
        "libreoffice_calc": "calc excel",
        "libreoffice_writer": "writer word",
        "libreoffice_impress": "impress ppt powerpoint",
        "chrome": "chromium browser google-chrome",
        "vlc": "ubuntu_media_player",
        "vs_code": "vscode code",
        "text_editor": "mousepad gedit",
        "file_manager": "pcmanfm nautilus",
        "terminal": "xterm gnome-terminal",
    }.items()
    for alias in aliases.split()
}
"""Other names, as task files and people write them."""

NEEDED = {
    "bwrap": "bubblewrap",
    "Xvfb": "xvfb",
    "openbox": "openbox",
    "dbus-daemon": "dbus",
    "/usr/libexec/at-spi-bus-launcher": "at-spi2-core",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
"""Programs without which no desktop boots, with their Debian packages."""


def canonical(name: str) -> str:
    """`Writer`, `libreoffice calc`, `vscode` -> the name in `APPS`; an unknown name stays as it is, in lower case."""
    plain = name.lower().replace(" ", "_")
    return ALIASES.get(plain, plain)


def installed_apps(chosen: frozenset[str] | None = None) -> frozenset[str]:
    """Applications of this host that a desktop can show, only those in `chosen` (by any name) if it is given."""
    found = frozenset(name for name, (path, _) in APPS.items() if Path(path).exists())
    return found if chosen is None else found & {canonical(name) for name in chosen}


def missing_packages() -> list[str]:
    """Debian packages to install before a desktop can boot; empty when all is there."""
    return sorted({package for program, package in NEEDED.items() if shutil.which(program) is None})
