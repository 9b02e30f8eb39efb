"""Commands that OSWorld's tasks call by name, on top of what Debian has.

They come first on the PATH, in /usr/local/bin. A shim is only written when what it stands for is installed and the real
command is not, so a missing application stays missing.
"""

from pathlib import Path

CHROME = "/opt/google/chrome/chrome"
"""Chromium's binary under this name, because tasks run `pkill chrome`, which matches the name of the process."""

CHROME_FLAGS = (
    "--user-data-dir=/home/user/.config/google-chrome",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--disable-gpu",
    "--force-renderer-accessibility",
    "--disable-search-engine-choice-screen",
    "--disable-component-update",
)

# gedit's and nautilus' options that their stand-ins do not know are dropped; the operands are kept.
PLAIN = """#!/bin/sh
for word do
  shift
  case $word in -*) ;; *) set -- "$@" "$word" ;; esac
done
exec {command} "$@"
"""

# GNOME Terminal takes the command after -- or -x, or as one word after -e; --working-directory as --key=value.
TERMINAL = """#!/bin/sh
size=
while [ $# -gt 0 ]; do
  case $1 in
    --|-x) shift; exec xterm $size -e "$@" ;;
    -e|--command) exec xterm $size -e sh -c "$2" ;;
    --command=*) exec xterm $size -e sh -c "${1#*=}" ;;
    --working-directory=*) cd "${1#*=}" || exit 1 ;;
    --maximize) size=-maximized ;;
    --full-screen) size=-fullscreen ;;
  esac
  shift
done
exec xterm $size
"""

# There is nothing to be root of in the sandbox. -S reads the password, as the real one does; commands run as the user.
SUDO = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    -S|--stdin) IFS= read -r _ ;;
    -u|-g|-p|--user|--group|--prompt) shift ;;
    -u*|-g*|-p*) ;;
    --) shift; break ;;
    -*) ;;
    *=*) export "$1" ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || exit 0
exec "$@"
"""

CHROME_SHIM = f'#!/bin/sh\nexec {CHROME} {" ".join(CHROME_FLAGS)} "$@"\n'
EXEC = '#!/bin/sh\nexec {command} "$@"\n'

STAND_INS: tuple[tuple[str, str, str], ...] = (
    # name, the command behind it, template
    ("google-chrome", "chromium", CHROME_SHIM),
    ("google-chrome-stable", "chromium", CHROME_SHIM),
    ("chromium-browser", "chromium", CHROME_SHIM),
    ("chromium", "chromium", CHROME_SHIM),
    ("gnome-terminal", "xterm", TERMINAL),
    ("x-terminal-emulator", "xterm", TERMINAL),
    ("gedit", "mousepad", PLAIN),
    ("gnome-text-editor", "mousepad", PLAIN),
    ("nautilus", "pcmanfm", PLAIN),
    ("python", "python3", EXEC),
)


def write_shims(folder: Path, usr_bin: Path = Path("/usr/bin")) -> None:
    """Write those that this host needs, executable by all."""
    _write(folder / "sudo", SUDO)
    for name, command, template in STAND_INS:
        ours = template is CHROME_SHIM  # Chromium's own start script must not be reached: its process has another name.
        if (usr_bin / command).exists() and (ours or not (usr_bin / name).exists()):
            _write(folder / name, template.replace("{command}", f"/usr/bin/{command}"))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
