"""The label rule: only real assistant turns, only finished ones, only those asked for."""

import pytest

from flywheel.errors import DataError
from flywheel.trainers.labels import IGNORE, Span, assistant_spans, sft_labels

START, ASSISTANT, NEWLINE, END, USER = 90, 91, 92, 93, 94
MARKS = (START, ASSISTANT, NEWLINE, END)
HEAD = [START, ASSISTANT, NEWLINE]


def test_bodies_and_their_ends_are_learned() -> None:
    ids = [START, USER, NEWLINE, 1, END, NEWLINE, *HEAD, 2, 3, END, NEWLINE]
    assert assistant_spans(ids, *MARKS) == [Span(9, 12, True)]
    assert sft_labels(ids, *MARKS).tolist() == [IGNORE] * 9 + [2, 3, END, IGNORE]


def test_the_bare_word_in_user_text_is_not_a_turn() -> None:
    assert assistant_spans([START, USER, NEWLINE, ASSISTANT, NEWLINE, 5, END], *MARKS) == []


def test_a_turn_cut_off_stays_context() -> None:
    ids = [*HEAD, 1, END, NEWLINE, *HEAD, 2]
    assert [span.closed for span in assistant_spans(ids, *MARKS)] == [True, False]
    assert sft_labels(ids, *MARKS, turn_flags=[1, 1]).tolist() == [IGNORE] * 3 + [1, END] + [IGNORE] * 5


def test_a_turn_cut_off_by_the_next_does_not_swallow_it() -> None:
    ids = [*HEAD, 1, START, USER, NEWLINE, 2, END]
    assert assistant_spans(ids, *MARKS) == [Span(3, 4, False)]
    assert (sft_labels(ids, *MARKS) == IGNORE).all()


def test_a_header_without_a_body_is_cut_off() -> None:
    assert assistant_spans(HEAD, *MARKS) == [Span(3, 3, False)]
    assert assistant_spans([], *MARKS) == []


def test_flags_mask_turns_and_must_match_them() -> None:
    ids = [*HEAD, 1, END, *HEAD, 2, END]
    assert sft_labels(ids, *MARKS, turn_flags=[0, 1]).tolist() == [IGNORE] * 8 + [2, END]
    with pytest.raises(DataError, match="2 assistant turns but 1 flags"):
        sft_labels(ids, *MARKS, turn_flags=[1])
