"""What the desktop looks like: cells, captions, incremental drawing, random scenes."""

import random

import numpy as np
import pytest

from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.oracle import next_step, plan
from flywheel.envs.simulated.render import Renderer
from flywheel.envs.simulated.scene import Part, Scene, Window, scene_from_json, scene_to_json
from flywheel.envs.simulated.scenes import random_scene
from flywheel.envs.simulated.sprites import DESKTOP, cell_sprite
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.envs.simulated.vocabulary import CAPTIONS, KINDS, STATES
from flywheel.types import Click, Key, Size, Type


def test_the_lower_half_of_a_cell_depends_on_the_word_alone() -> None:
    for caption in CAPTIONS:
        halves = {cell_sprite(kind, caption, state, "")[16:].tobytes() for kind in KINDS for state in STATES}
        assert len(halves) == 1
    assert len({cell_sprite("button", caption, "plain", "")[16:].tobytes() for caption in CAPTIONS}) == 24


def test_the_upper_half_tells_kind_and_state() -> None:
    def top(kind: str, state: str, text: str = "") -> bytes:
        return cell_sprite(kind, "Save", state, text)[:16].tobytes()

    assert len({top(kind, "plain") for kind in KINDS}) == len(KINDS)
    checks = {top("check", state) for state in ("plain", "checked", "focused", "checked focused")}
    assert len(checks) == 4
    assert top("menu", "open") != top("menu", "plain")
    fields = {top("field", state, "blue") for state in ("filled", "filled focused", "filled selected")}
    assert len(fields | {top("field", "plain"), top("field", "filled", "red")}) == 5


@pytest.mark.parametrize("layout", ["roomy", "free"])
@pytest.mark.parametrize("screen", [Size(160, 128), Size(101, 97), Size(400, 300)])
def test_drawing_what_changed_equals_drawing_everything(layout: str, screen: Size) -> None:
    desktop = SimulatedDesktop()
    for task in generate_tasks(split="train", count=52, seed=4, screen=screen, layout=layout):
        shown = desktop.reset(task).screenshot
        done = False
        while not done:
            scene = scene_from_json(task.config[0]["parameters"])
            assert Renderer(scene).screenshot(desktop.widgets()) == shown
            result = desktop.step(next_step(desktop, task).action)
            shown, done = result.observation.screenshot, result.done


def test_roomy_widgets_keep_to_their_cells() -> None:
    desktop = SimulatedDesktop()
    for task in generate_tasks(split="train", count=104, seed=0, screen=Size(160, 128)):
        desktop.reset(task)
        for step in plan(SimulatedDesktop(), task):
            widgets = desktop.widgets()
            assert len({widget.cell for widget in widgets}) == len(widgets)
            assert len({widget.caption for widget in widgets}) == len(widgets)
            assert all(widget.box == (widget.cell % 5 * 32, widget.cell // 5 * 32, 32, 32) for widget in widgets)
            desktop.step(step.action)


def test_free_widgets_do_not_overlap_at_rest() -> None:
    desktop = SimulatedDesktop()
    for task in generate_tasks(split="train", count=52, seed=0, screen=Size(320, 240), layout="free"):
        desktop.reset(task)
        covered = np.zeros((240, 320), int)
        for widget in desktop.widgets():
            left, top, width, height = widget.box
            covered[top : top + height, left : left + width] += 1
        assert covered.max() == 1


@pytest.mark.parametrize("screen", [Size(160, 128), Size(96, 96), Size(330, 200)])
def test_random_scenes(screen: Size) -> None:
    rng = np.random.default_rng(0)
    cells = (screen.width // 32) * (screen.height // 32)
    for _ in range(50):
        pixels, widgets = random_scene(rng, screen, (2, 30))
        assert pixels.shape == (screen.height, screen.width, 3)
        assert pixels.dtype == np.uint8
        assert 2 <= len(widgets) <= min(cells, len(CAPTIONS))
        assert len({widget.cell for widget in widgets}) == len({widget.caption for widget in widgets}) == len(widgets)
        rest = pixels.copy()
        for widget in widgets:
            assert widget.state in STATES
            assert (widget.text != "") == ("filled" in widget.state)
            left, top, width, height = widget.box
            assert (rest[top : top + height, left : left + width] != DESKTOP).any()
            rest[top : top + height, left : left + width] = DESKTOP
        assert (rest == DESKTOP).all()


@pytest.mark.parametrize("layout", ["roomy", "free"])
def test_anything_that_a_task_file_may_hold_can_be_drawn(layout: str) -> None:
    rng = random.Random(0)
    for _ in range(150):
        screen = Size(rng.randint(96, 800), rng.randint(96, 800))
        parts = []
        for i in range(rng.randrange(8)):
            width, height = (32, 32) if layout == "roomy" else (rng.randint(1, 90), rng.randint(1, 90))
            box = (rng.randint(0, screen.width - width), rng.randint(0, screen.height - height), width, height)
            kind = rng.choice(("button", "check", "field", "menu", "icon", "bin"))
            parts.append(Part(kind, f"{i}" + "é日本\n☂" * rng.randrange(4), box))
        window = Window("日本", (0, 0, rng.randint(1, 96), rng.randint(1, 96)))
        desktop = SimulatedDesktop()
        desktop.load(scene_from_json(scene_to_json(Scene(screen, layout, tuple(parts), (window,)))))
        for widget in desktop.widgets():
            desktop.step(Click(*widget.center))
            desktop.step(Type("日本\u0007é" * 3))
            shown = desktop.step(Key(("ctrl", "a"))).observation.screenshot
            assert shown is not None
            assert shown.size == screen


def test_random_scenes_repeat() -> None:
    first, again = (random_scene(np.random.default_rng(7), Size(160, 128), (1, 4)) for _ in range(2))
    assert (first[0] == again[0]).all()
    assert first[1] == again[1]
