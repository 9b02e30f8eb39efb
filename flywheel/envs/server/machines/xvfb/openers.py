"""Which application opens which kind of file: what `xdg-open` and a double click in the file manager go by.

Debian writes the cache that these ask (`mimeinfo.cache`) only where desktop-file-utils is installed, so the kinds are
read from the applications' own entries and stand in the home folder.
"""

from pathlib import Path

APPLICATIONS = Path("/usr/share/applications")

# The first that knows a kind gets it: text is for the editor, tables for Calc, and Chromium shows what is left.
_ORDER = (
    "org.xfce.mousepad",
    "libreoffice-calc",
    "libreoffice-impress",
    "libreoffice-writer",
    "gimp",
    "vlc",
    "thunderbird",
    "pcmanfm",
)
CHROME = "google-chrome.desktop"
_CHROME_ENTRY = """[Desktop Entry]
Type=Application
Name=Google Chrome
Exec=google-chrome %U
Icon=chromium
Categories=Network;WebBrowser;
"""
_CHROME_KINDS = (
    "text/html",
    "application/pdf",
    "application/xhtml+xml",
    "x-scheme-handler/http",
    "x-scheme-handler/https",
)


def opener_files(chrome: bool, applications: Path = APPLICATIONS) -> dict[str, str]:
    """Path in the home folder -> text. `chrome` says whether there is a google-chrome to open pages with."""
    openers = dict.fromkeys(_CHROME_KINDS, CHROME) if chrome else {}
    for name in _ORDER:
        for kind in _kinds(applications / f"{name}.desktop"):
            openers.setdefault(kind, f"{name}.desktop")
    lines = "".join(f"{kind}={opener};\n" for kind, opener in sorted(openers.items()))
    entry = {f".local/share/applications/{CHROME}": _CHROME_ENTRY} if chrome else {}
    return {".config/mimeapps.list": f"[Default Applications]\n{lines}"} | entry


def _kinds(entry: Path) -> list[str]:
    if not entry.exists():
        return []
    listed = [line for line in entry.read_text(errors="replace").splitlines() if line.startswith("MimeType=")]
    return [kind for line in listed for kind in line.partition("=")[2].split(";") if kind]
