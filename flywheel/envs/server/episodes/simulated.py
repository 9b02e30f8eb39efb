"""The simulated desktop as an episode: what the env server plays where no real desktop is wanted."""

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.envs.server.machines.base import refuse_unknown
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.scene import refuse_desktop
from flywheel.errors import InfrastructureError
from flywheel.types import Action, Observation, Size, StepResult, Task

T = TypeVar("T")


class SimulatedEpisode:
    """One simulated desktop.

    Args:
        machine: not used.
        options: `screen`, its width and height in pixels, and `layout`.

    Raises `ConfigError` for options that cannot be used.
    """

    def __init__(self, machine: str, options: Mapping[str, Any]) -> None:
        refuse_unknown("A simulated desktop", options, ("desktop", "folder", "layout", "screen"))
        self._screen = Size(*options.get("screen", (160, 128)))
        self._layout = str(options.get("layout", "roomy"))
        refuse_desktop(self._screen, self._layout)
        self._options = ObserveOptions()
        self._env = self._open()
        self._seen: Observation | None = None

    def _open(self) -> SimulatedEnv:
        return SimulatedEnv(self._screen, self._layout, self._options.accessibility)

    def start(self) -> None:
        """There is nothing to boot."""

    def capabilities(self) -> Capabilities:
        return replace(
            self._env.capabilities,
            action_spaces=frozenset({"computer_use", "pyautogui"}),
            images=frozenset({"raw", "png", "webp"}),
        )

    def reset(self, task: Task, options: ObserveOptions) -> Observation:
        self._options = options
        self._env = self._open()
        return self._look(_result(self._env.reset(task)))

    def step(self, action: Action, pause: float | None) -> StepResult:
        """Nothing here takes time, so there is nothing to pause for."""
        result = _result(self._env.step(action))
        return replace(result, observation=self._look(result.observation))

    def observe(self) -> Observation:
        if self._seen is None:
            raise InfrastructureError("The simulated desktop has no running episode; reset it first.")
        return self._seen

    def evaluate(self) -> float:
        return _result(self._env.evaluate())

    def view(self) -> int | str:
        return "A simulated desktop has no screen server; its trajectories can be looked at with `flywheel show`."

    def recycle(self) -> None:
        self._options, self._seen = ObserveOptions(), None
        self._env = self._open()

    def health(self) -> str | None:
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _look(self, seen: Observation) -> Observation:
        codec, shot, tree = self._options.image, seen.screenshot, seen.accessibility_tree
        if shot is not None and codec in ("png", "webp"):
            shot = shot.encode("png" if codec == "png" else "webp")
        if tree is not None:
            tree = tree[: self._options.accessibility_chars]
        self._seen = replace(seen, screenshot=shot, accessibility_tree=tree)
        return self._seen


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine of the simulated desktop returns; none of them ever waits, so the first step is the last."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise RuntimeError("The simulated desktop waited for something.")
