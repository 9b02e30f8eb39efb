"""What a family of a task pack hands over, and the words it is written in: files, judges, steps of a solution.

Everything here gives plain JSON: set-up steps and evaluators as OSWorld reads them, and the steps of solutions as
`flywheel.rollout.agents.solutions` does.
"""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

HOME = "/home/user"
_UNPACK = (
    "import base64,json,pathlib,sys\n"
    "for name, data in json.loads(sys.argv[1]).items():\n"
    "    path = pathlib.Path(name)\n"
    "    path.parent.mkdir(parents=True, exist_ok=True)\n"
    "    path.write_bytes(base64.b64decode(data[7:]) if data.startswith('base64:') else data.encode())\n"
)
_IDLE = """
import os, time
ours = {str(os.getpid()), str(os.getppid())}
def busy():
    for pid in os.listdir('/proc'):
        if pid.isdigit() and pid not in ours:
            try:
                if open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] in 'RD':
                    return True
            except OSError:
                pass
    return False
until, quiet = time.time() + 30, 0
while quiet < 10 and time.time() < until:
    quiet = 0 if busy() else quiet + 1
    time.sleep(0.1)
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """One task before it has an id.

    `launch` is the application's command line, `title` a part of the title that its window has once it is ready.
    `server` is a command that serves beside it, `idle` says that the application loses keys until it has come to rest.
    `solution` leaves out the last step, which says that it is over.
    """

    instruction: str
    evaluator: Json
    solution: Sequence[Json]
    launch: Sequence[str]
    title: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    server: Sequence[str] = ()
    idle: bool = False

    def config(self) -> list[Json]:
        """The set-up steps, in order."""
        files = [write_files(self.files)] if self.files else []
        server = [_step("launch", command=list(self.server))] if self.server else []
        rest = [run("python3", "-c", _IDLE)] if self.idle else []
        return [*files, *server, _step("launch", command=list(self.launch)), _fill_the_screen(self.title), *rest]


def write_files(files: Mapping[str, str | bytes]) -> Json:
    """A set-up step that writes files, and the folders that they are in, inside the guest."""
    told = {
        path: data if isinstance(data, str) else "base64:" + base64.b64encode(data).decode()
        for path, data in files.items()
    }
    return run("python3", "-c", _UNPACK, json.dumps(told))


def run(*command: str) -> Json:
    """A set-up step that runs a command and waits for it."""
    return _step("execute", command=list(command))


def _fill_the_screen(title: str) -> Json:
    """Waits for the window, up to a minute on a busy host, and maximizes it: what an agent sees is then the same on
    every screen. Status 126 is what tells the episode that set-up failed."""
    quoted = shlex.quote(title)
    maximize = f"wmctrl -r {quoted} -b add,maximized_vert,maximized_horz"
    script = f"for i in $(seq 300); do wmctrl -a {quoted} && {maximize} && exit 0; sleep 0.2; done; exit 126"
    return run("bash", "-c", script)


def _step(kind: str, **parameters: Any) -> Json:
    return {"type": kind, "parameters": parameters}


# --- judges ----------------------------------------------------------------------------------------------------


def prints(script: str, text: str) -> Json:
    """A bash script in the guest prints exactly `text` and a line break."""
    return {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["bash", "-c", script]},
        "expected": _rule(expected=f"{text}\n" if text else ""),
    }


def file_says(path: str, *texts: str) -> Json:
    """The file holds exactly one of `texts`."""
    judges = [{"func": "compare_config", "result": vm_file(path), "expected": _rule(expected=text)} for text in texts]
    return judges[0] if len(judges) == 1 else either(judges)


def either(judges: Sequence[Json], conj: str = "or") -> Json:
    """Several judges as one; all of them have to agree where `conj` is "and"."""
    keys = ("func", "result", "expected", "options")
    lists = {key: [judge.get(key, {} if key == "options" else None) for judge in judges] for key in keys}
    return {**lists, "conj": conj}


def cells(path: str, expected: Mapping[str, Mapping[str, Any]]) -> Json:
    """Cells of the first sheet of a workbook; a property is compared with its value, numbers within 0.001.

    `expected` is {"B2": {"value": 3, "font_bold": True}}.
    """
    rules = []
    for place, properties in expected.items():
        props = {
            name: {"method": "approx:0.001" if _is_number(value) else "eq", "ref": value}
            for name, value in properties.items()
        }
        rules.append({"type": "check_cell", "sheet_idx": 0, "coordinate": place, "props": props})
    return {"func": "compare_table", "result": vm_file(path), "options": {"rules": rules}}


def like_gold(func: str, path: str, gold: bytes, **options: Any) -> Json:
    """The file and a right one agree by the metric `func`. The right one is written when the episode is over."""
    suffix = path.rpartition(".")[2]
    there = f"/tmp/gold/gold.{suffix}"
    return {
        "func": func,
        "result": vm_file(path),
        "expected": {"type": "vm_file", "path": there, "dest": f"gold.{suffix}"},
        "options": options,
        "postconfig": [write_files({there: gold})],
    }


def file_by(func: str, path: str, **rules: Any) -> Json:
    """A metric of a single file; with `rules` where it takes some."""
    judge: Json = {"func": func, "result": vm_file(path)}
    return judge | {"expected": _rule(**rules)} if rules else judge


def vm_file(path: str) -> Json:
    name = path.rpartition("/")[2].replace(" ", "_")
    return {"type": "vm_file", "path": path, "dest": f"result_{name}"}


def infeasible() -> Json:
    return {"func": "infeasible"}


def _rule(**rules: Any) -> Json:
    return {"type": "rule", "rules": rules}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- steps of solutions -------------------------------------------------------------------------------------------


def press(*keys: str, to: str) -> Json:
    """Press `keys` together; `to` says what for."""
    return _act({"type": "key", "keys": list(keys)}, to, f"press {' '.join(keys)}")


def write(text: str, what: str = "") -> Json:
    """Type a text; `what` names it where it does not speak for itself."""
    return _act({"type": "type", "text": text}, f"text {what or text}", f"type {what or text}")


def wait(seconds: float, why: str) -> Json:
    """Until `why`."""
    return _act({"type": "wait", "seconds": seconds}, f"wait until {why}", "wait")


def click(name: str, role: str) -> Json:
    """Click the middle of the element of that name, once the accessibility tree has it."""
    return _act({"type": "click"}, f"{role} {name}", f"click {name}") | {"find": {"role": role, "name": name}}


def end(*, failure: bool) -> Json:
    """The last step; `failure` is right where the task cannot be done."""
    status, words = ("failure", "it cannot be done") if failure else ("success", "the task is done")
    return _act({"type": "done", "status": status}, words, "finish")


def _act(action: Json, thinking: str, brief: str) -> Json:
    return {"action": action, "thinking": thinking, "brief": brief}
