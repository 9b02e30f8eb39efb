"""What people look at: escaped, self-contained, with the actions where they happened."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from flywheel.errors import CorruptTrajectoryError
from flywheel.store.marks import Mark, caption, marks
from flywheel.store.viewer import film_strip_png, render_trajectory
from flywheel.testing import random_trajectory
from flywheel.types import (
    Answer,
    Click,
    Code,
    Done,
    Drag,
    Key,
    Move,
    Observation,
    Screenshot,
    Scroll,
    Type,
    Wait,
)

ACTIONS = [
    (Click(10, 20), Mark("ring", (10, 20)), "click 10, 20"),
    (Drag(30, 40), Mark("arrow", (30, 40), (10, 20)), "drag to 30, 40"),
    (Scroll(-3), Mark("arrow", (30, 60), (30, 40)), "scroll down 3"),
    (Click(1, 2, "right", 2, ("ctrl",)), Mark("ring", (1, 2), count=2), "ctrl+double right click 1, 2"),
    (Move(50, 60), Mark("cross", (50, 60)), "move to 50, 60"),
    (Scroll(0, 2, 70, 10), Mark("arrow", (90, 10), (70, 10)), "scroll right 2"),
    (Type("a <b>&"), None, "type “a <b>&”"),
    (Key(("ctrl", "s")), None, "press ctrl+s"),
    (Wait(1.5), None, "wait 1.5 s"),
    (Code("ls", "bash"), None, "run bash: ls"),
    (None, None, "no action"),
    (Answer("42"), None, "answer “42”"),
    (Done("failure"), None, "done: cannot be done"),
]


@pytest.fixture
def trajectory():
    turn = random_trajectory("a", 1, (120, 100), codec="raw").turns[0]
    turns = tuple(replace(turn, action=action) for action, _, _ in ACTIONS)
    return replace(random_trajectory("some-id", 0, task_reward=1.0), turns=turns)


class Page(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_marks_and_captions_follow_the_pointer(trajectory):
    assert list(marks(trajectory.turns)) == [mark for _, mark, _ in ACTIONS]
    assert [caption(action) for action, _, _ in ACTIONS] == [words for _, _, words in ACTIONS]


def test_the_page_shows_every_turn(trajectory):
    page = Page(render_trajectory(trajectory))
    assert sum(tag == "section" for tag, _ in page.tags) == len(ACTIONS)
    for _, _, words in ACTIONS:
        assert words in page.text
    for expected in ("some-id", trajectory.task.instruction, "success", "iter-01 from iter-00", "format +0.1"):
        assert expected in page.text
    circle = next(attributes for tag, attributes in page.tags if tag == "circle")
    assert (circle["cx"], circle["cy"]) == ("10", "20")


def test_the_page_is_self_contained(trajectory):
    page = Page(render_trajectory(trajectory))
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "data:").startswith("data:image/png;base64,") or name not in attributes


def test_text_from_the_model_and_the_desktop_is_escaped(trajectory):
    evil = "<script>alert(1)</script>\"'&"
    observation = Observation(None, evil, evil, evil)
    turn = replace(
        trajectory.turns[0], text=evil, error=evil, action=Type(evil), observation=observation, finish_reason=evil
    )
    hostile = replace(
        trajectory,
        id=evil,
        turns=(turn,),
        task=replace(trajectory.task, instruction=evil, id=evil, family=evil),
        error=evil,
        reward_terms={evil: 1.0},
        failure=evil,
        outcome="failed",
        policy=replace(trajectory.policy, version=evil),
    )
    page = Page(render_trajectory(hostile))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(evil) >= 10


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"task_reward": 1.0}, "success"),
        ({"task_reward": 0.2}, "no success"),
        ({"task_reward": None}, "not judged"),
        ({"task_reward": None, "outcome": "failed", "failure": "setup"}, "failed (setup)"),
    ],
)
def test_verdicts(trajectory, fields, expected):
    verdict = re.search(r'class="verdict[^>]*>([^<]*)<', render_trajectory(replace(trajectory, **fields)))
    assert verdict.group(1) == expected


def test_the_film_strip_shows_first_and_last_turn_with_marks(trajectory):
    image = Image.open(io.BytesIO(film_strip_png(trajectory, 3)))
    assert image.format == "PNG"
    assert image.height < 260
    assert image.width == 3 * (216 + 6) + 6
    plain = replace(trajectory, turns=tuple(replace(turn, action=Wait()) for turn in trajectory.turns))
    without = Image.open(io.BytesIO(film_strip_png(plain, 3)))
    x, y = 6 + int(10 * 1.8), 18 + 12 + int(20 * 1.8)
    box = (x - 10, y - 10, x + 10, y + 10)
    assert not np.array_equal(np.asarray(image.crop(box)), np.asarray(without.crop(box)))


@pytest.mark.parametrize("turns", [0, 1, 2, 40])
@pytest.mark.parametrize("size", [(16, 400), (1280, 720), (160, 128)])
def test_film_strips_of_any_shape(turns, size):
    turn = random_trajectory("a", 1, size).turns[0]
    image = Image.open(io.BytesIO(film_strip_png(replace(random_trajectory("b", 0), turns=(turn,) * turns))))
    assert image.width >= 480


def test_turns_without_a_screenshot_have_a_place(trajectory):
    blind = replace(trajectory.turns[0], observation=Observation(None))
    assert film_strip_png(replace(trajectory, turns=(blind,)))
    assert "no screenshot" in render_trajectory(replace(trajectory, turns=(blind,)))


def test_a_damaged_screenshot_is_named(trajectory):
    broken = Screenshot(b"\x89PNG not really", 120, 100, "png")
    turn = replace(trajectory.turns[0], observation=Observation(broken))
    with pytest.raises(CorruptTrajectoryError, match="turn 1 of trajectory 'some-id' is damaged"):
        film_strip_png(replace(trajectory, turns=(turn,)))
