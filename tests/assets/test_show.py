"""What assets show of a stage's result."""

from flywheel.assets import show


def test_a_teacher_is_shown_where_one_was_called() -> None:
    called = {"policy": "oracle", "partition": "teacher-iter-01", "episodes": 4, "solved": 3}
    assert show.teacher({"teacher": called}) == {
        "teacher/policy": "oracle",
        "teacher/partition": "teacher-iter-01",
        "teacher/episodes": 4,
        "teacher/solved": 3,
    }
    assert show.teacher({"teacher": None}) == show.teacher({}) == {}
