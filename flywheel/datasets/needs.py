"""What an OSWorld task needs of a machine, and whether it can run here.

Read from the task file alone, before anything is started: its platform, applications, programs, downloads, the live
web, a Google account, the set-up steps and evaluator functions that desktop-env has. What the instruction leaves to the
agent (some tasks send it to the web without saying so in the file) cannot be read and is not judged. Standard library
only: the workers of real desktops refuse tasks by the same judgement.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from flywheel.datasets.osworld_names import GETTERS, METRICS
from flywheel.errors import TaskError
from flywheel.types import Task

Cause = Literal["platform", "unsafe", "google", "step", "evaluator", "network", "app", "file"]

APPS: dict[str, tuple[str, ...]] = {
    "chrome": ("google-chrome", "google-chrome-stable", "chromium", "chromium-browser"),
    "libreoffice_calc": ("localc",),
    "libreoffice_writer": ("lowriter",),
    "libreoffice_impress": ("loimpress",),
    "gimp": ("gimp",),
    "vlc": ("vlc",),
    "thunderbird": ("thunderbird",),
    "vs_code": ("code",),
    "file_manager": ("nautilus", "pcmanfm", "thunar"),
    "terminal": ("gnome-terminal", "xterm", "xfce4-terminal"),
    "text_editor": ("gedit", "mousepad", "gnome-text-editor"),
    "gnome_shell": ("gnome-shell",),
    "gnome_terminal": ("gnome-terminal",),
    "systemd": ("systemd",),
    "picard": ("picard",),
}
"""Application -> programs any one of which provides it; desktops without systemd do not list it."""

PROGRAMS = (
    "gsettings", "gio", "pactl", "snap", "jq", "unzip", "zip", "git", "xsel", "expect", "wmctrl",
    "socat", "update-desktop-database", "dconf", "conda",
)  # fmt: skip
"""Programs that commands of tasks call and that not every machine has."""

PROBED = frozenset(PROGRAMS).union(*APPS.values())
"""Every program whose presence decides something."""

_ALIASES = {
    "vscode": "vs_code", "calc": "libreoffice_calc", "writer": "libreoffice_writer", "browser": "chrome",
    "ubuntu_media_player": "vlc", "nautilus": "file_manager", "google-chrome": "chrome", "code": "vs_code",
    "gnome-terminal": "terminal", "gedit": "text_editor",
}  # fmt: skip
_OPENED_WITH = {
    "libreoffice_calc": (".xlsx", ".xls", ".ods", ".csv"),
    "libreoffice_writer": (".docx", ".doc", ".odt"),
    "libreoffice_impress": (".pptx", ".ppt", ".odp"),
}
_SYSTEM = re.compile(r"\b(timedatectl|hostnamectl|systemctl|bluetoothctl|loginctl)\b")
_MISJUDGED = {
    "compare_image_text": "Its metric compare_image_text needs easyocr, which this server leaves out.",
    "check_python_file_by_test_suite": "Its metric would run the agent's file in the server's own process.",
    "data_delete_automacally": "Its getter data_delete_automacally takes any new profile of Chromium for solved.",
}
"""Metrics and getters that are there and cannot be used."""
_NOT_IMPLEMENTED = frozenset({"tidy_desktop", "act", "replay"})
_COMMANDS = frozenset({"execute", "execute_with_verification", "command", "launch"})
_WEB_GETTERS = frozenset({
    "active_url_from_accessTree", "active_tab_html_parse", "active_tab_url_parse", "url_dashPart", "url_path_parse",
    "page_info", "info_from_website", "pdf_from_url", "gotoRecreationPage_and_get_html_content",
    "macys_product_url_parse", "number_of_search_results",
})  # fmt: skip
_TAB_GETTERS = frozenset({"active_tab_info", "open_tabs_info"})
_NETWORK_COMMAND = re.compile(
    r"\bapt(-get)? (-\S+ )*(install|update)|\bpip3? install (?!/)|\bgit clone\b|\b(curl|wget)\b|\bsnap install\b"
    r"|--install-extension [\w-]+\.[\w-]+(\s|$)"
)
_HISTORY = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
_WINDOWS = re.compile(r"^[A-Za-z]:[\\/]|/windows_osworld_file_cache/")
_OFFICE = frozenset({"excel", "word", "ppt", "powerpoint"})


@dataclass(frozen=True, slots=True)
class Download:
    """A file that desktop-env fetches: from where, and its name in `cache/<task id>/`."""

    url: str
    name: str


@dataclass(frozen=True, slots=True)
class Here:
    """What a machine offers.

    `programs` holds those of `PROBED` that it has, `cache` the downloads by task. `offers` names applications where the
    machine knows better than its PATH which of them work in it.
    """

    programs: frozenset[str]
    cache: Path
    platform: str = "ubuntu"
    internet: bool = False
    offers: frozenset[str] | None = None

    @property
    def apps(self) -> frozenset[str]:
        found = frozenset(app for app, programs in APPS.items() if self.programs.intersection(programs))
        return found if self.offers is None else self.offers


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a task cannot run here: one sentence."""

    cause: Cause
    reason: str


def judge(task: Task, here: Here) -> Refusal | None:
    """None when the task can run on such a machine. Raises `TaskError` where its steps cannot be understood."""
    for look in (_platform, _unsafe, _google, _steps, _evaluator, _network, _apps, _files):
        refusal = look(task, here)
        if refusal is not None:
            return refusal
    return None


def platform_of(data: Mapping[str, Any]) -> str:
    """Of a task file: "windows" by the suffix of its id, its applications or any path in it, else "ubuntu"."""
    office = _OFFICE.intersection(str(app) for app in data.get("related_apps") or ())
    windows = office or str(data.get("id")).endswith("-WOS") or any(_WINDOWS.search(text) for text in _texts(data))
    return "windows" if windows else "ubuntu"


def cache_name(task_id: str) -> str:
    """Folder of its downloads in the cache; the chunks that data sets cut a task into share them."""
    return re.sub(r"_chunk.*$", "", task_id)


def apps_of(task: Task) -> frozenset[str]:
    """Applications that the file names, launches or opens documents with."""
    named = [str(app) for app in task.raw.get("related_apps") or ()]
    for kind, parameters in _all_steps(task):
        if kind == "launch":
            named += _launched(parameters)
        elif kind == "open":
            suffix = PurePosixPath(str(parameters.get("path"))).suffix.lower()
            named += [app for app, suffixes in _OPENED_WITH.items() if suffix in suffixes]
        elif kind in ("chrome_open_tabs", "chrome_close_tabs"):
            named.append("chrome")
    return _known(named)


def launches(task: Task) -> bool:
    """Whether set-up starts an application without waiting for its window."""
    return any(_known(_launched(step.get("parameters") or {})) for step in task.config if step.get("type") == "launch")


def downloads(task: Task) -> list[Download]:
    """Files that set-up and evaluation fetch, under the names that desktop-env looks for in its cache."""
    found = []
    for kind, parameters in _all_steps(task):
        if kind == "download":
            for file in parameters["files"]:
                name = f"{uuid.uuid5(uuid.NAMESPACE_URL, file['url'])}_{PurePosixPath(file['path']).name}"
                found.append(Download(file["url"], name))
        elif kind == "update_browse_history":
            found.append(Download(_HISTORY, "history_new.sqlite"))
    for getter in getters(task):
        if getter.get("type") == "cloud_file":
            many = getter.get("multi", False)
            urls, names = (getter["path"], getter["dest"]) if many else ([getter["path"]], [getter["dest"]])
            found += [Download(url, name) for url, name in zip(urls, names, strict=True)]
    return list(dict.fromkeys(found))


def getters(task: Task) -> list[Mapping[str, Any]]:
    """The evaluator's `result` and `expected` entries."""
    entries = [task.evaluator.get(key) or [] for key in ("result", "expected")]
    flat = [each for entry in entries for each in (entry if isinstance(entry, list) else [entry])]
    return [each for each in flat if isinstance(each, Mapping) and each]


def missing_files(task: Task, cache: Path) -> list[Download]:
    """Downloads that the offline cache lacks."""
    folder = cache / cache_name(task.id)
    return [file for file in downloads(task) if not (folder / file.name).is_file()]


# --- one look after another ------------------------------------------------------------------------------------


def _platform(task: Task, here: Here) -> Refusal | None:
    if task.platform == here.platform:
        return None
    return Refusal("platform", f"It is for the platform {task.platform}, and this machine is {here.platform}.")


def _unsafe(task: Task, _: Here) -> Refusal | None:
    """A task file must not make the server read or write its own files outside the task's cache folder."""
    names = [file.name for file in downloads(task)] + [task.id]
    for kind, parameters in _all_steps(task):
        if kind in _COMMANDS:
            names += [str(parameters[key]) for key in ("stdout", "stderr") if parameters.get(key)]
        if kind == "upload_file":
            return Refusal("unsafe", "Its upload_file step reads a file of the server; use download.")
    for getter in getters(task):
        wanted = getter.get("path") if getter.get("type") == "cache_file" else getter.get("dest")
        names += wanted if isinstance(wanted, list) else [wanted] if wanted else []
    bad = [name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
    return Refusal("unsafe", f"It names the file {bad[0]!r}, which is outside its own folder.") if bad else None


def _google(task: Task, _: Here) -> Refusal | None:
    needed = any(kind in ("googledrive", "login") for kind, _ in _all_steps(task))
    needed = needed or any(getter.get("type") == "googledrive_file" for getter in getters(task))
    return Refusal("google", "It needs a Google account.") if needed else None


def _steps(task: Task, _: Here) -> Refusal | None:
    lacking = [kind for kind, _ in _all_steps(task) if kind in _NOT_IMPLEMENTED]
    return Refusal("step", f"desktop-env has no set-up step '{lacking[0]}'.") if lacking else None


def _evaluator(task: Task, _: Here) -> Refusal | None:
    func = task.evaluator.get("func")
    funcs = func if isinstance(func, list) else [func]
    for name in funcs:
        if name not in METRICS:
            return Refusal("evaluator", f"desktop-env has no metric {name!r}.")
    kinds = [getter.get("type") for getter in getters(task)]
    for kind in kinds:
        if kind not in GETTERS:
            return Refusal("evaluator", f"desktop-env has no getter {kind!r}.")
    unfit = [_MISJUDGED[name] for name in (*funcs, *kinds) if name in _MISJUDGED]
    return Refusal("evaluator", unfit[0]) if unfit else None


def _network(task: Task, here: Here) -> Refusal | None:
    if here.internet:
        return None
    if task.raw.get("proxy"):
        return Refusal("network", "It needs the live web through a proxy.")
    for kind, parameters in _all_steps(task):
        pages = parameters.get("urls_to_open") or () if kind == "chrome_open_tabs" else ()
        live = [page for page in pages if not re.match(r"(https?://)?(localhost|127\.)|file:|chrome:|about:", page)]
        if live:
            return Refusal("network", f"It opens {live[0]} on the live web.")
    for command in _commands(task):
        if found := _NETWORK_COMMAND.search(command):
            return Refusal("network", f"It runs '{found.group().strip()}', which needs a network.")
    for getter in getters(task):
        tabs = getter.get("type") in _TAB_GETTERS and any("http" in text for text in _texts(task.evaluator))
        if getter.get("type") in _WEB_GETTERS or tabs:
            return Refusal("network", f"Its checker ({getter['type']}) looks at a page of the live web.")
    return None


def _apps(task: Task, here: Here) -> Refusal | None:
    wanted = set(apps_of(task))
    commands = "\n".join(_commands(task))
    if "org.gnome.shell" in commands:
        wanted.add("gnome_shell")
    if _SYSTEM.search(commands):
        wanted.add("systemd")
    if any(getter.get("type") == "vm_terminal_output" for getter in getters(task)):
        wanted.add("gnome_terminal")  # what xterm shows cannot be read through the accessibility bus
    lacking = sorted(wanted - here.apps)
    lacking += [
        name
        for name in PROGRAMS
        if name not in here.programs and re.search(rf"(^|[\s;&|('\"/]){re.escape(name)}(\s|$)", commands, re.MULTILINE)
    ]
    return Refusal("app", f"It needs {', '.join(lacking)}, which this machine does not have.") if lacking else None


def _files(task: Task, here: Here) -> Refusal | None:
    lacking = missing_files(task, here.cache)
    if not lacking:
        return None
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return Refusal("file", f"It needs {lacking[0].url}{more}, which the offline cache does not hold.")


# --- reading -----------------------------------------------------------------------------------------------------


def _all_steps(task: Task) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and parameters of the set-up steps, then of those before evaluation."""
    for where, steps in (("config", task.config), ("postconfig", task.evaluator.get("postconfig") or ())):
        for i, step in enumerate(steps):
            parameters = step.get("parameters") if isinstance(step, Mapping) else None
            if not isinstance(parameters, Mapping) or not isinstance(step.get("type"), str):
                raise TaskError(f"Task {task.id} has step {i} of its {where} without type or parameters.")
            yield step["type"], parameters


def _launched(parameters: Mapping[str, Any]) -> list[str]:
    """The program of a launch step, and the applications of LibreOffice by their option."""
    command = parameters.get("command") or ""
    words = [str(word) for word in (command.split() if isinstance(command, str) else command)]
    programs = [PurePosixPath(word).name for word in words if "=" not in word][:1]
    return programs + [app for app in _OPENED_WITH if f"--{app.removeprefix('libreoffice_')}" in words]


def _known(names: list[str]) -> frozenset[str]:
    canonical = (name.lower().replace(" ", "_") for name in names)
    return frozenset(_ALIASES.get(name, name) for name in canonical) & APPS.keys()


def _commands(task: Task) -> list[str]:
    """Everything that is run in the guest, as text."""
    told = [parameters.get("command") for kind, parameters in _all_steps(task) if kind in _COMMANDS]
    told += [each.get("command") for each in getters(task) if str(each.get("type")).startswith("vm_command")]
    return [" ".join(map(str, each)) if isinstance(each, list) else str(each or "") for each in told]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
