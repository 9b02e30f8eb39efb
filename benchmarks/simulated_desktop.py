"""Steps a second of the simulated desktop on one core, against redrawing the full screen every step.

    python benchmarks/simulated_desktop.py [--seconds 2]

Every way plays the same recorded solutions of all families and levels in the same process, sets tasks up outside the
clock, and hands out a raw RGB screenshot after each step. Time is CPU time, so that a busy machine does not count.
"""

import argparse
import time
from collections.abc import Callable, Sequence

from flywheel.datasets.task_files import LEVELS
from flywheel.envs.simulated import free_sprites, sprites
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.families import FAMILIES
from flywheel.envs.simulated.oracle import plan
from flywheel.envs.simulated.render import Renderer, Widget
from flywheel.envs.simulated.scene import Scene
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.types import Action, Screenshot, Size, Task

DESKS = (("roomy", Size(160, 128)), ("free", Size(160, 128)), ("free", Size(1280, 720)))
Recording = tuple[Task, tuple[Action, ...]]


class RedrawEverything(Renderer):
    """Composes the whole screen from the background, from sprites that are kept."""

    def screenshot(self, widgets: Sequence[Widget]) -> Screenshot:
        self._screenshot, self._drawn = None, []
        return super().screenshot(widgets)


class DrawEverything(RedrawEverything):
    """Composes the whole screen and draws every widget anew with PIL."""

    def screenshot(self, widgets: Sequence[Widget]) -> Screenshot:
        sprites.cell_sprite.cache_clear()
        free_sprites.widget_sprite.cache_clear()
        return super().screenshot(widgets)


def desktop_with(renderer: type[Renderer]) -> SimulatedDesktop:
    class Desktop(SimulatedDesktop):
        def load(self, scene: Scene) -> None:
            super().load(scene)
            self._renderer = renderer(scene)

    return Desktop()


def record(layout: str, screen: Size) -> list[Recording]:
    count = len(FAMILIES) * len(LEVELS) * 3
    tasks = generate_tasks(split="train", count=count, seed=0, screen=screen, layout=layout)
    return [(task, tuple(step.action for step in plan(SimulatedDesktop(), task))) for task in tasks]


def steps_per_second(desktop: SimulatedDesktop, recordings: list[Recording], seconds: float) -> float:
    steps, spent = 0, 0.0
    while spent < seconds:
        for task, actions in recordings:
            desktop.reset(task)
            started = time.process_time()
            for action in actions:
                desktop.step(action)
            spent += time.process_time() - started
            steps += len(actions)
    return steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of each measurement")
    seconds = parser.parse_args().seconds
    ways: dict[str, Callable[[], SimulatedDesktop]] = {
        "flywheel: draws what changed": SimulatedDesktop,
        "baseline: full screen from kept sprites": lambda: desktop_with(RedrawEverything),
        "baseline: full screen drawn with PIL": lambda: desktop_with(DrawEverything),
    }
    for layout, screen in DESKS:
        recordings = record(layout, screen)
        print(f"{layout}, {screen.width} x {screen.height}, {len(recordings)} tasks")
        for name, open_desktop in ways.items():
            rate = steps_per_second(open_desktop(), recordings, seconds)
            print(f"  {name:<42}{rate:>9,.0f} steps/s")


if __name__ == "__main__":
    main()
