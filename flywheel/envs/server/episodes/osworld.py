"""OSWorld's tasks on a real desktop, judged by OSWorld's own evaluators.

Runs in the workers' virtual environment (`flywheel desktops setup`). The agent's side goes straight to the guest
server; set-up and evaluation go through desktop-env.
"""

import contextlib
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flywheel.datasets.needs import PROBED, Here, judge, launches
from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.envs.server.episodes.osworld_cache import fill_cache
from flywheel.envs.server.episodes.osworld_guest import Guest
from flywheel.envs.server.episodes.osworld_imports import import_desktop_env
from flywheel.envs.server.episodes.osworld_judge import Judge
from flywheel.envs.server.episodes.osworld_machines import make_machine
from flywheel.envs.server.machines.base import view_of
from flywheel.envs.server.places import cache_root
from flywheel.errors import EvaluatorError, InfrastructureError, SetupError, TaskError
from flywheel.types import Action, Answer, Code, Done, Observation, Screenshot, StepResult, Task, Wait

SETTLE_SECONDS, LOOK_SECONDS = 1.0, 0.1
"""Without a pause a step waits until a look shows nothing new, at most so long, looking so often."""
WINDOW_SECONDS, QUIET_SECONDS = 15.0, 0.8
"""For the window of an application that set-up launched, and how long the screen must then have shown nothing new."""
REST_SECONDS = 10.0
"""The guest has so long to become idle before and after the checker's own steps; a film never is."""
MOST_WAIT_SECONDS = 60.0


class OSWorldEpisode:
    """One desktop that plays one task after another; see `base.Episode`.

    Args:
        machine: xvfb, qemu or remote.
        options: `folder` and `desktop` from the supervisor, `cache` (the offline cache); the rest are the machine's.
    """

    def __init__(self, machine: str, options: dict[str, Any]) -> None:
        rest = dict(options)
        rest.pop("desktop", None)
        self._folder = Path(rest.pop("folder", None) or tempfile.mkdtemp(prefix="flywheel-")).absolute()
        self._cache = Path(rest.pop("cache", None) or cache_root())
        self._machine, self._traits = make_machine(machine, self._folder, rest)
        self._guest: Guest | None = None
        self._judge: Judge | None = None
        self._programs: frozenset[str] = frozenset()
        self._options = ObserveOptions()
        self._over, self._judged = False, False

    def start(self) -> None:
        """Boot the machine and see what it has. Raises `InfrastructureError`."""
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # no proxy of the host's stands before its own desktops
        os.chdir(self._folder)  # some metrics write where they stand
        with ThreadPoolExecutor(1) as beside:  # half a second of reading files, while the machine boots
            imported = beside.submit(import_desktop_env)
            self._machine.start()
            self._guest = Guest(self._machine.endpoints())
            self._programs = self._guest.programs(PROBED) if self._traits.platform == "ubuntu" else frozenset()
        if (error := imported.exception()) is not None:
            raise InfrastructureError(f"desktop-env cannot be imported ({error}); run `flywheel desktops setup`.")

    def capabilities(self) -> Capabilities:
        guest = self._running()
        return Capabilities(
            screen=guest.screen,
            apps=self._here().apps | {"os"},  # OSWorld's word for tasks that need the desktop alone
            platform=self._traits.platform,
            internet=self._traits.internet,
            action_spaces=frozenset({"computer_use", "pyautogui", "code"}),
            snapshots=self._traits.snapshots,
            isolation=self._traits.isolation,
            images=frozenset({"png", "jpeg", "webp"}),
        )

    def reset(self, task: Task, options: ObserveOptions) -> Observation:
        """Refuse what cannot run here, then set up. Raises `SetupError` or `InfrastructureError`."""
        guest = self._running()
        self._judge, self._options = None, options
        try:
            refusal = judge(task, self._here())
        except (TaskError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SetupError(f"Task {task.id} is malformed: {error}.") from error
        if refusal is not None:
            raise SetupError(f"Task {task.id} cannot run on this desktop: {refusal.reason}")
        rollout = Path(tempfile.mkdtemp(prefix="cache-", dir=self._folder))
        fill_cache(task, self._cache, rollout)
        judging = Judge(task, self._machine.endpoints(), guest.screen, self._traits.platform, rollout, self._rest)
        judging.set_up()
        self._judge, self._over, self._judged = judging, False, False
        if not launches(task):
            return self._look(None, None)
        return guest.observe(options, None, self._opened(guest))

    def step(self, action: Action, pause: float | None) -> StepResult:
        """An action that cannot be executed is a result with an error. Raises `InfrastructureError`."""
        judging, guest = self._playing(), self._running()
        if self._over:
            error = "The episode has ended; reset the desktop to begin another."
            return StepResult(self._look(0.0, error), executed=False, error=error, done=True)
        if isinstance(action, Done | Answer):
            self._over = True
            judging.acted("FAIL" if isinstance(action, Done) and action.status == "failure" else "DONE")
            return StepResult(self._look(0.0, "The episode is over."), done=True)
        refused, said = None, None
        if isinstance(action, Wait):
            time.sleep(max(0.0, min(action.seconds, MOST_WAIT_SECONDS)))
        elif isinstance(action, Code):
            said = guest.run(action)
        else:
            refused = guest.act(action)
        judging.acted(type(action).__name__)
        return StepResult(self._look(pause, refused or said), executed=refused is None, error=refused)

    def observe(self) -> Observation:
        return self._look(0.0, None)

    def evaluate(self) -> float:
        """In [0, 1]; once an episode. Raises `EvaluatorError`, or `InfrastructureError` when the desktop is lost."""
        if self._judge is None or self._judged:
            raise EvaluatorError("The episode was judged already or never began; an episode is judged once.")
        self._judged = True
        return self._judge.evaluate()

    def view(self) -> int | str:
        return view_of(self._machine)

    def recycle(self) -> None:
        """A fresh desktop, and nothing left of the rollout's files."""
        self._judge = None
        self._forget()
        self._machine.revert()
        self._guest = Guest(self._machine.endpoints())

    def health(self) -> str | None:
        return self._machine.health()

    def close(self) -> None:
        self._judge = None
        self._forget()
        self._machine.stop()

    def _look(self, pause: float | None, last_result: str | None) -> Observation:
        guest = self._running()
        if pause is None:
            shot = self._settled(guest)
            seen = guest.observe(self._options, last_result, shot)
        else:
            time.sleep(pause)
            seen = guest.observe(self._options, last_result)
        return seen

    def _opened(self, guest: Guest) -> Screenshot:
        """The screen once a launched application shows itself; GIMP takes five seconds, behind a splash.

        A window is there before it is drawn, and a blank one shows nothing new: it loses the keys that it is sent.
        """
        until = time.monotonic() + WINDOW_SECONDS
        while not guest.has_window() and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        self._rest()
        return self._settled(guest, QUIET_SECONDS, WINDOW_SECONDS)

    def _rest(self) -> None:
        if self._traits.platform == "ubuntu":
            self._running().rest(REST_SECONDS)

    def _settled(self, guest: Guest, quiet: float = LOOK_SECONDS, most: float = SETTLE_SECONDS) -> Screenshot:
        """The screen once it has shown nothing new for `quiet` seconds: a blinking cursor comes to rest, a film not."""
        begun = same_since = time.monotonic()
        shot = guest.screenshot(self._options)
        shown = {shot.data}
        while time.monotonic() - same_since < quiet and time.monotonic() - begun < most:
            time.sleep(LOOK_SECONDS)
            shot = guest.screenshot(self._options)
            if shot.data not in shown:
                shown.add(shot.data)
                same_since = time.monotonic()
        return shot

    def _here(self) -> Here:
        traits = self._traits
        return Here(self._programs, self._cache, traits.platform, traits.internet, traits.apps)

    def _running(self) -> Guest:
        if self._guest is None:
            raise InfrastructureError("The desktop is not running; start it first.")
        return self._guest

    def _playing(self) -> Judge:
        if self._judge is None or self._judged:
            raise InfrastructureError("The desktop has no running episode; reset it first.")
        return self._judge

    def _forget(self) -> None:
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        for left in self._folder.glob("cache-*"):
            with contextlib.suppress(OSError):
                shutil.rmtree(left)
