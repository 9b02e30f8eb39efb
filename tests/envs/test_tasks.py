"""Generation and splits: deterministic, balanced, never overlapping."""

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from flywheel.datasets.task_files import LEVELS
from flywheel.envs.simulated.desktop import SimulatedDesktop
from flywheel.envs.simulated.families import FAMILIES
from flywheel.envs.simulated.oracle import plan
from flywheel.envs.simulated.tasks import content_id, generate_tasks, overlap, split_of
from flywheel.envs.simulated.vocabulary import ALL_WORDS, CAPTIONS
from flywheel.errors import ConfigError
from flywheel.types import Click, Done, Size, Split, Task
from tests.envs.support import SCREEN, random_actions

DESKS = [
    ("roomy", Size(160, 128)),
    ("roomy", Size(96, 96)),
    ("roomy", Size(640, 400)),
    ("free", Size(160, 128)),
    ("free", Size(96, 96)),
    ("free", Size(640, 400)),
    ("free", Size(1280, 720)),
]
EACH = len(FAMILIES) * len(LEVELS)


def generate(
    count: int, layout: str = "roomy", screen: Size = SCREEN, split: Split = "train", seed: int = 0
) -> list[Task]:
    return generate_tasks(split=split, count=count, seed=seed, screen=screen, layout=layout)


@pytest.mark.parametrize(("layout", "screen"), DESKS)
def test_the_oracle_solves_every_family_at_every_level(layout: str, screen: Size) -> None:
    desktop = SimulatedDesktop()
    rounds = 6 if screen.width < 700 else 1
    tasks = generate(EACH * rounds, layout, screen)
    assert set(Counter((task.family, task.level) for task in tasks).values()) == {rounds}
    for task in tasks:
        steps = plan(desktop, task)
        assert desktop.evaluate() == 1.0, (task.family, task.level, task.instruction)
        assert len(steps) <= 8
        assert steps[-1].action == Done("failure" if task.infeasible else "success")


@pytest.mark.parametrize("layout", ["roomy", "free"])
def test_words_and_cells_of_demonstrations(layout: str) -> None:
    desktop = SimulatedDesktop()
    said = set()
    for task in generate(EACH * 2, layout):
        for step in plan(desktop, task):
            said |= {*step.thinking.split(), *step.brief.split()}
        said |= set(task.instruction.split(" "))
    words = {word for word in said if not word.isdigit()}
    assert words <= set(ALL_WORDS)
    assert {int(word) for word in said - words} <= set(range(20))
    assert len(ALL_WORDS) <= 80
    assert len(CAPTIONS) == 24
    assert max(map(len, CAPTIONS)) <= 5


def test_thinking_names_the_widget_and_its_cell() -> None:
    desktop = SimulatedDesktop()
    (task,) = generate_tasks(split="train", count=1, seed=3, screen=SCREEN, families=("click",), levels=(1,))
    step = plan(desktop, task)[0]
    (pressed,) = [widget for widget in desktop.widgets() if widget.caption == task.instruction.split()[1]]
    assert step.thinking == f"button {pressed.caption} {pressed.cell}"
    assert (step.action.x, step.action.y) == pressed.center
    assert pressed.center == (pressed.cell % 5 * 32 + 16, pressed.cell // 5 * 32 + 16)


@pytest.mark.parametrize("layout", ["roomy", "free"])
def test_without_looking_nothing_is_solved(layout: str) -> None:
    rng, desktop = random.Random(0), SimulatedDesktop()
    scores = defaultdict(list)
    for task in generate(EACH * 8, layout):
        desktop.reset(task)
        assert desktop.evaluate() == 0.0
        desktop.step(Done())
        assert desktop.evaluate() == 0.0
        desktop.reset(task)
        acted = random_actions(rng, SCREEN)
        for action in [*acted[:-1], Done("success")]:
            desktop.step(action)
        scores[task.family].append(desktop.evaluate())
    assert set(scores) == set(FAMILIES)
    for family, values in scores.items():
        assert sum(values) / len(values) <= 0.1, family
    assert sum(map(sum, scores.values())) / (EACH * 8) < 0.02


def test_giving_up_is_right_on_infeasible_tasks_alone() -> None:
    desktop = SimulatedDesktop()
    for task in generate(EACH * 2):
        desktop.reset(task)
        desktop.step(Done("failure"))
        assert desktop.evaluate() == float(task.infeasible)
        assert task.infeasible == (task.family == "infeasible")


def test_acting_before_giving_up_is_wrong() -> None:
    desktop = SimulatedDesktop()
    touched = 0
    for task in generate_tasks(split="train", count=20, seed=0, screen=SCREEN, families=("infeasible",)):
        desktop.reset(task)
        buttons = [widget for widget in desktop.widgets() if widget.kind in ("button", "check")]
        if buttons:
            desktop.step(Click(*buttons[0].center))
            desktop.step(Done("failure"))
            assert desktop.evaluate() == 0.0
            touched += 1
    assert touched > 5


def test_the_same_arguments_give_the_same_tasks_and_pictures() -> None:
    first, again = generate(40), generate(40)
    assert first == again
    assert generate(40, seed=1)[0].id != first[0].id
    desktops = SimulatedDesktop(accessibility=True), SimulatedDesktop(accessibility=True)
    for one, other in zip(first, again, strict=True):
        for step in plan(SimulatedDesktop(), one):
            results = [desktop.reset(task) for desktop, task in zip(desktops, (one, other), strict=True)]
            assert results[0] == results[1]
            results = [desktop.step(step.action).observation for desktop in desktops]
            assert results[0] == results[1]


@pytest.mark.parametrize("layout", ["roomy", "free"])
def test_splits_cannot_overlap_whatever_their_seeds(layout: str) -> None:
    train = [task for seed in range(3) for task in generate(150, layout, seed=seed)]
    heldout = [task for seed in range(3) for task in generate(150, layout, split="heldout", seed=seed)]
    assert overlap(train, heldout) == set()
    for tasks, split in ((train, "train"), (heldout, "heldout")):
        assert {task.split for task in tasks} == {split}
        assert all(split_of(content_id(task.instruction, task.config, task.evaluator)) == split for task in tasks)
    renamed = replace(train[0], id="renamed", split="heldout")
    assert overlap([renamed], train) == {"renamed"}


@pytest.mark.parametrize("layout", ["roomy", "free"])
def test_where_things_stand_tells_nothing_about_the_goal(layout: str) -> None:
    """Of all menus at rest, in reading order, the wanted one is anywhere; the same for buttons and icons."""
    desktop = SimulatedDesktop()
    for family, kind in (("menu", "menu"), ("click", "button"), ("double_click", "icon")):
        ranks, chance = [], []
        for task in generate_tasks(
            split="train", count=150, seed=0, screen=SCREEN, layout=layout, families=(family,), levels=(2,)
        ):
            first = plan(desktop, task)[0].thinking.split()[1]
            desktop.reset(task)
            captions = [widget.caption for widget in desktop.widgets() if widget.kind == kind]
            ranks.append(captions.index(first) == 0)
            chance.append(1 / len(captions))
        assert sum(ranks) / 150 == pytest.approx(sum(chance) / 150, abs=0.12)


def test_ids_are_unique_and_families_take_turns() -> None:
    tasks = generate_tasks(split="train", count=30, seed=0, screen=SCREEN, families=("drag", "form"), levels=(1, 3))
    assert len({task.id for task in tasks}) == 30
    assert [task.family for task in tasks[:4]] == ["drag", "form", "drag", "form"]
    assert Counter(task.level for task in tasks) == {1: 16, 3: 14}


def test_higher_levels_show_or_ask_more() -> None:
    desktop = SimulatedDesktop()
    seen: dict[int, list[int]] = {level: [] for level in LEVELS}
    steps: dict[int, int] = dict.fromkeys(LEVELS, 0)
    for task in generate(EACH * 5):
        steps[task.level] += len(plan(desktop, task))
        desktop.reset(task)
        seen[task.level].append(len(desktop.widgets()))
    means = [sum(seen[level]) / len(seen[level]) for level in LEVELS]
    assert means == sorted(means)
    assert means[-1] > means[0] + 6
    assert steps[4] >= steps[3] > steps[2] >= steps[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"families": ("swim",)}, "no task family 'swim'; choose from click"),
        ({"levels": (5,)}, "no level 5"),
        ({"screen": Size(90, 128)}, "90 x 128 is too small; take at least 96 x 96"),
        ({"layout": "dense"}, "no layout 'dense'; take roomy or free"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, object], message: str) -> None:
    arguments = {"split": "train", "count": 1, "seed": 0, "screen": SCREEN} | wrong
    with pytest.raises(ConfigError, match=message):
        generate_tasks(**arguments)  # type: ignore[arg-type]
