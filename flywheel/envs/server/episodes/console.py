"""Episodes on a virtual machine that runs no server: the monitor types and looks, a file read back from it is judged.

A task's `config` holds steps of three types, done in order on the clean machine:

    {"type": "stick", "parameters": {"files": {"notes.txt": "text"}}}     files on a USB stick that is then plugged in
    {"type": "keys",  "parameters": {"verbs": ["sendkey meta_l-r", "wait 1", "typeline notepad"]}}
    {"type": "sleep", "parameters": {"seconds": 2}}

Its `evaluator` is one of `console_checkers.py`.
"""

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from flywheel.actions.sendkey_verbs import read_verb
from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.envs.server.episodes.console_checkers import Check, decode, read_check
from flywheel.envs.server.machines.base import view_of
from flywheel.envs.server.machines.qemu.exchange import name_problem
from flywheel.envs.server.machines.qemu.machine import QemuMachine
from flywheel.envs.server.machines.qemu.options import QemuOptions
from flywheel.envs.server.machines.qemu.readback import read_back
from flywheel.errors import ActionError, ConfigError, EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Action, Answer, Done, Observation, Screenshot, Size, StepResult, Task

_SETTLE_S = 0.5  # between an action and the look at what it did, when the caller names no time


class ConsoleEpisode:
    """An `Episode`; `options` are those of `QemuOptions`, beside `folder` and `desktop`."""

    def __init__(self, machine: str, options: dict[str, Any]) -> None:
        if machine != "qemu":
            raise ConfigError(f"A console episode plays on a qemu machine, not on {machine}; choose the backend qemu.")
        own = {name: value for name, value in options.items() if name not in ("folder", "desktop")}
        self._options = QemuOptions.from_json(own)
        self._machine = QemuMachine(self._options, Path(options["folder"]))
        self._screen = self._options.size
        self._look = ObserveOptions()
        self._check: Check | None = None
        self._ended = self._gave_up = False
        self._clean = False

    def start(self) -> None:
        self._machine.start()
        self._screen = Size(*self._machine.console.screenshot().size)
        self._clean = True

    def capabilities(self) -> Capabilities:
        return Capabilities(
            screen=self._screen,
            apps=frozenset(self._options.apps),
            platform=self._options.platform,
            internet=self._options.network == "open",
            action_spaces=frozenset({"sendkey", "computer_use", "pyautogui"} if self._options.pointer else {"sendkey"}),
            snapshots=self._machine.has_snapshot,
            isolation="vm",
            images=frozenset({"raw", "png", "jpeg", "webp"}),
        )

    def reset(self, task: Task, options: ObserveOptions) -> Observation:
        """Raises `SetupError` before the guest is touched when the task is not for this machine or makes no sense."""
        if task.platform != self._options.platform:
            raise SetupError(
                f"Task {task.id} is for {task.platform}, this machine runs {self._options.platform}; pick another."
            )
        check, steps = read_check(task.evaluator), self._steps(task)
        if not self._clean:
            self.recycle()
        self._ended = self._gave_up = self._clean = False
        self._check, self._look = check, options
        for step in steps:
            step()
        return self.observe()

    def step(self, action: Action, pause: float | None) -> StepResult:
        if self._check is None:
            raise InfrastructureError("This machine has no running episode; reset it first.")
        if self._ended:
            return StepResult(self.observe(), executed=False, error="The episode has ended already.", done=True)
        self._ended, error = isinstance(action, Done | Answer), None
        self._gave_up = isinstance(action, Done) and action.status == "failure"
        if not self._ended:
            try:
                self._machine.console.perform(action)
            except ActionError as problem:
                error = str(problem)
            else:
                time.sleep(_SETTLE_S if pause is None else pause)
        return StepResult(self.observe(), executed=error is None, error=error, done=self._ended)

    def observe(self) -> Observation:
        return Observation(_encoded(self._machine.console.screenshot(), self._look))

    def evaluate(self) -> float:
        """0.0 or 1.0, once; raises `EvaluatorError` when the file could not be fetched, which is not a missing file."""
        check, self._check = self._check, None
        if check is None:
            raise EvaluatorError("The episode was judged already or never began; an episode is judged once.")
        if check.path is None or self._gave_up:
            return float(check.path is None and self._gave_up)
        try:
            data = read_back(self._machine, self._options, check.path)
        except InfrastructureError as error:
            raise EvaluatorError(str(error)) from error
        return float(data is not None and check.holds(decode(data)))

    def view(self) -> int | str:
        return view_of(self._machine)

    def recycle(self) -> None:
        self._check = None
        self._machine.revert()
        self._clean = True

    def health(self) -> str | None:
        return self._machine.health()

    def close(self) -> None:
        self._check = None
        self._machine.stop()

    def _steps(self, task: Task) -> list[Callable[[], None]]:
        return [self._read_step(task, config) for config in task.config]

    def _read_step(self, task: Task, config: Mapping[str, Any]) -> Callable[[], None]:
        kind, values = config.get("type"), config.get("parameters") or {}
        try:
            if kind == "keys":
                actions = [read_verb(verb, self._screen) for verb in values["verbs"]]
                return lambda: self._perform(task, actions)
            if kind == "sleep":
                seconds = float(values["seconds"])
                return lambda: time.sleep(seconds)
            if kind == "stick":
                files = {str(name): str(text).encode() for name, text in values["files"].items()}
                if problem := next(filter(None, map(name_problem, files)), None):
                    raise ValueError(problem)
                return lambda: self._machine.exchange.insert(files)
        except (ActionError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SetupError(f"Set-up step {kind} of task {task.id} cannot be read: {error}") from error
        raise SetupError(f"Task {task.id} has a set-up step {kind!r}; a console task has keys, sleep and stick.")

    def _perform(self, task: Task, actions: list[Action]) -> None:
        for action in actions:
            try:
                self._machine.console.perform(action)
            except ActionError as error:
                raise SetupError(f"A set-up step of task {task.id} cannot be done: {error}") from error


def _encoded(image: Image.Image, look: ObserveOptions) -> Screenshot:
    width, height = image.size
    out = io.BytesIO()
    match look.image:
        case "raw":
            return Screenshot(image.tobytes(), width, height)
        case "png":
            image.save(out, "PNG", compress_level=1)
        case "webp":
            image.save(out, "WEBP", lossless=True, quality=0, method=0)
        case "jpeg":
            image.save(out, "JPEG", quality=look.quality)
    return Screenshot(out.getvalue(), width, height, look.image)
