"""What the tasks of LibreOffice share. Their files have Microsoft's formats, as OSWorld's do."""

from flywheel.packs.draft import HOME, Json, press, wait, write

FOLDER = f"{HOME}/Documents"
SAVE = (press("ctrl", "s", to="save the file"), wait(1, "it is saved"))


def launch(app: str, path: str) -> tuple[str, ...]:
    """The command line of `calc`, `writer` or `impress` with a file."""
    return ("libreoffice", "--nologo", "--norestore", f"--{app}", path)


def save_as(path: str) -> list[Json]:
    """In the same format, under another name."""
    return [
        press("ctrl", "shift", "s", to="save under another name"),
        wait(1, "the dialog is there"),
        press("ctrl", "a", to="select the name"),
        write(path),
        press("enter", to="save"),
        wait(1, "it is saved"),
    ]
