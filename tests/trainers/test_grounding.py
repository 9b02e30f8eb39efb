"""Grounding lessons say what an action would say, train numbers only, and leave the vision tower frozen."""

import re

import numpy as np
import pytest

from flywheel.envs.simulated.scenes import random_scene
from flywheel.envs.simulated.vocabulary import CAPTIONS, KINDS, STATES
from flywheel.modeling.build import build_model
from flywheel.trainers.grounding import Teacher, train_grounding, train_vision
from flywheel.trainers.model import fingerprint
from flywheel.types import Click, Type
from tests.tiny import SCREEN, Notes, Tiny


@pytest.fixture(scope="module")
def teacher(tiny: Tiny) -> Teacher:
    return Teacher(tiny.chat, SCREEN)


def test_every_name_is_one_token(teacher: Teacher) -> None:
    sizes = {name: len(ids) for name, ids in teacher.classes.items()}
    assert sizes == {"caption": len(CAPTIONS), "cell": 20, "x": 5, "y": 4}
    for ids in teacher.classes.values():
        assert len(set(ids)) == len(ids)


def test_targets_name_what_stands_in_each_cell(teacher: Teacher) -> None:
    image, widgets = random_scene(np.random.default_rng(0), SCREEN, (5, 9))
    assert image.shape == (128, 160, 3)
    targets = {name: target.tolist() for name, target in teacher.targets([widgets]).items()}
    for cell in range(20):
        widget = next((widget for widget in widgets if widget.cell == cell), None)
        expected = (-100, -100, -100)
        if widget is not None:
            expected = (CAPTIONS.index(widget.caption), KINDS.index(widget.kind), STATES.index(widget.state))
        assert tuple(targets[name][cell] for name in ("caption", "kind", "state")) == expected
    assert targets["cell"] == list(range(20))
    assert targets["x"] == [0, 1, 2, 3, 4] * 4
    assert targets["y"] == [y for y in range(4) for _ in range(5)]


def test_a_lesson_is_an_action_whose_numbers_are_trained(teacher: Teacher, tiny: Tiny) -> None:
    """The words are those of the action space: what is parsed back is a click on the middle of the widget."""
    image, widgets = random_scene(np.random.default_rng(1), SCREEN, (4, 4))
    lesson = teacher.lesson(image, widgets, [True, True, False, True])
    text = tiny.chat.decode(lesson.input_ids[lesson.input_ids != tiny.chat.image_id].tolist())
    answers = re.findall(r"<thinking>.*?</tool_call>", text, re.DOTALL)
    whole = [widget for i, widget in enumerate(widgets) if i != 2]
    assert [teacher.space.parse(answer, SCREEN).action for answer in answers[:2]] == [
        Click(*widget.center) for widget in whole[:2]
    ]
    trained = [tiny.chat.decode([int(i)]) for i in lesson.input_ids[lesson.train_mask]]
    assert len(trained) == 3 * 3 + 1
    assert [int(word) for word in trained if word.startswith(" ")] == [widget.cell for widget in widgets]
    assert all(word.strip().isdigit() for word in trained)
    assert (lesson.weights == lesson.train_mask).all()


def test_a_dictation_repeats_words_as_actions(teacher: Teacher, tiny: Tiny) -> None:
    """Trained is each word as it is thought, said and typed, and nothing else; there is nothing to look at."""
    words = ["gold", "Save", "ctrl"]
    lesson = teacher.dictation(words)
    text = tiny.chat.decode(lesson.input_ids.tolist())
    assert text.startswith(" gold Save ctrl\n")
    answers = re.findall(r"<thinking>.*?</tool_call>", text, re.DOTALL)
    assert [teacher.space.parse(answer, SCREEN).action for answer in answers] == [Type(word) for word in words]
    trained = [tiny.chat.decode([int(i)]).strip() for i in lesson.input_ids[lesson.train_mask]]
    assert trained == [word for word in words for _ in range(3)]
    assert lesson.images == ()


def test_the_two_stages_learn_and_repeat(tiny: Tiny) -> None:
    """A few steps of each: the loss falls, the same seed gives the same weights, vision is frozen in the end."""
    sizes = tiny.config.model.tiny.model_copy(update={"vision_steps": 10, "grounding_steps": 10})
    prints, notes = [], Notes()
    for _ in range(2):
        model = build_model(tiny.chat.processor.tokenizer, sizes, seed=0)
        notes = Notes()
        captions = train_vision(model, tiny.chat, SCREEN, sizes, 0, notes)
        numbers = train_grounding(model, tiny.chat, SCREEN, sizes, 0, notes)
        prints.append(fingerprint(model.parameters()))
    assert prints[0] == prints[1]
    vision = [point["vision_loss"] for point in notes.curve if "vision_loss" in point]
    grounding = [point["grounding_loss"] for point in notes.curve if "grounding_loss" in point]
    assert len(vision) == len(grounding) == 10
    assert vision[-1] < 0.9 * vision[0]
    assert grounding[-1] < 0.9 * grounding[0]
    assert 0 <= captions <= 1
    assert 0 <= numbers <= 1
    assert not any(p.requires_grad for p in model.model.visual.parameters())
    assert notes.done[-1] == (10, 10, "grounding steps")
