"""Reading lessons: so many of them, told their own solution, before screens that do not help."""

from dataclasses import replace

import pytest

from flywheel.trainers.hindsight import solution, with_hindsight
from flywheel.trainers.packing import pack
from flywheel.trainers.reading import reading_lessons
from flywheel.types import TrainingSample, Trajectory
from tests.tiny import Tiny, episodes, some_tasks


@pytest.fixture(scope="module")
def played(tiny: Tiny) -> list[Trajectory]:
    return episodes(tiny, some_tasks(6), samples=1)


@pytest.fixture(scope="module")
def rows(tiny: Tiny, played: list[Trajectory]) -> list[TrainingSample]:
    return [tiny.chat.sample(trajectory) for trajectory in played]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.25, 2), (0.5, 6), (0.75, 18)])
def test_the_share_is_that_of_rows_and_lessons_together(
    tiny: Tiny, rows: list[TrainingSample], share: float, expected: int
) -> None:
    lessons = reading_lessons(rows, tiny.chat, share=share, seed=3)
    assert len(lessons) == expected
    assert len({lesson.trajectory_id for lesson in lessons}) == min(expected, 6)
    again = reading_lessons(rows, tiny.chat, share=share, seed=3)
    assert [lesson.images for lesson in again] == [lesson.images for lesson in lessons]


def test_a_lesson_tells_the_answers_that_it_asks_for(
    tiny: Tiny, played: list[Trajectory], rows: list[TrainingSample]
) -> None:
    own = {row.trajectory_id: (row, trajectory) for row, trajectory in zip(rows, played, strict=True)}
    for lesson in reading_lessons(rows, tiny.chat, share=0.5, seed=3):
        row, trajectory = own[lesson.trajectory_id]
        told = solution([turn.completion_ids for turn in trajectory.turns], tiny.chat)
        expected = with_hindsight(row, told, tiny.chat)
        assert lesson.input_ids.tolist() == expected.input_ids.tolist()
        assert lesson.weights.tolist() == expected.weights.tolist()


def test_a_lesson_shows_the_screens_of_another_row(tiny: Tiny, rows: list[TrainingSample]) -> None:
    own = {row.trajectory_id: row for row in rows}
    lessons = reading_lessons(rows, tiny.chat, share=0.5, seed=3)
    kept = [lesson.images[0] == own[lesson.trajectory_id].images[0] for lesson in lessons]
    assert sum(kept) <= 2  # a permutation leaves one in its place on average
    pack(lessons, image_id=tiny.chat.image_id)


def test_a_screen_of_another_size_stays(tiny: Tiny, rows: list[TrainingSample]) -> None:
    blind = [
        replace(row, image_grids=tuple((1, 2, number) for _ in row.image_grids)) for number, row in enumerate(rows)
    ]
    for lesson in reading_lessons(blind, tiny.chat, share=0.5, seed=3):
        assert lesson.images == next(row.images for row in rows if row.trajectory_id == lesson.trajectory_id)
