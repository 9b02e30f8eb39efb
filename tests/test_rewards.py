"""The shaped reward: its golden figures, each of its terms, and what is read from a trajectory."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.rewards import RewardWeights, TurnEvidence, evidence, is_grounded, screen_difference, shape, shaped_reward
from flywheel.types import (
    Action,
    Answer,
    Click,
    Code,
    Done,
    Drag,
    Key,
    Move,
    Observation,
    PolicyRef,
    Screenshot,
    Scroll,
    Task,
    Trajectory,
    Turn,
    Type,
    Wait,
)

GOLDEN = [TurnEvidence(kind, kind, screen_diff=0.02, a11y_delta=0.1) for kind in ("click", "write", "press")]


def screen(grey: int, width: int = 160, height: int = 128) -> Screenshot:
    return Screenshot.from_array(np.full((height, width, 3), grey, np.uint8))


def play(*turns: Turn, task_reward: float | None = 1.0) -> Trajectory:
    return Trajectory("t1", Task("task", "", ""), PolicyRef("p", ""), turns, "completed", "done", task_reward)


def turn(action: Action | None, grey: int = 0, **observed: str) -> Turn:
    return Turn(Observation(screen(grey), **observed), "", action)


class TestGoldenFigures:
    def test_failure(self):
        reward, terms = shape(GOLDEN, 0.0, max_turns=8)
        assert terms["partial"] == pytest.approx(0.42225, abs=1e-12)
        assert reward == pytest.approx(0.126675, abs=1e-12)

    def test_success(self):
        reward, terms = shape(GOLDEN, 1.0, max_turns=8)
        assert terms["partial"] == pytest.approx(0.42225, abs=1e-12)
        assert reward == 1.0

    def test_eight_identical_clicks(self):
        reward, terms = shape([TurnEvidence("click", Click(5, 5))] * 8, 0.0, max_turns=8)
        assert reward == 0.0
        assert terms["repeat_penalty"] == 0.30

    def test_the_parts_of_the_figure(self):
        _, terms = shape(GOLDEN, 0.0, max_turns=8)
        assert terms["tool_calling"] == pytest.approx(0.4 + 0.4 + 0.2 * 0.5), "write and press are no modalities"
        assert terms["efficiency"] == 0.625
        assert terms["screen_diff"] == pytest.approx(0.02)
        assert terms["a11y_delta"] == pytest.approx(0.1)

    def test_canonical_names_are_two_modalities_and_more(self):
        named = [replace(each, kind=kind) for each, kind in zip(GOLDEN, ("click", "type", "key"), strict=True)]
        assert shape(named, 0.0, max_turns=8)[1]["partial"] == pytest.approx(0.43725)

    def test_the_cookbooks_code_defaults(self):
        weights = RewardWeights(a11y_grounding=0.30, tool_calling=0.25)
        assert shape(GOLDEN, 0.0, max_turns=8, weights=weights)[1]["partial"] == pytest.approx(0.42225 + 0.09)


class TestTerms:
    @pytest.mark.parametrize(
        ("turns", "complexity", "fit"),
        [
            (1, "low", 0.5),
            (2, "low", 1),
            (5, "low", 1),
            (8, "low", 5 / 8),
            (40, "low", 0.5),
            (4, "medium", 0.8),
            (12, "medium", 1),
            (5, "high", 0.5),
            (10, "high", 1),
            (25, "high", 1),
            (30, "high", 25 / 30),
        ],
    )
    def test_fit_of_the_number_of_turns(self, turns, complexity, fit):
        played = [TurnEvidence("move", i) for i in range(turns)]
        score = shape(played, 0.0, max_turns=50, complexity=complexity)[1]["tool_calling"]
        assert score == pytest.approx(0.4 / 3 + 0.4 * fit)

    def test_penalties_are_slopes_with_caps(self):
        def penalty(name: str, *turns: TurnEvidence) -> float:
            return shape(turns, 0.0, max_turns=8)[1][name]

        fine = TurnEvidence("click", 1)
        unread = TurnEvidence("", None, parsed=False, executed=False)
        fallback, wait = replace(fine, signature=2, fallback=True), TurnEvidence("wait", 3)
        assert penalty("unknown_penalty", unread) == 0.0, "from two turns on"
        assert penalty("unknown_penalty", fine, wait, fallback, unread) == pytest.approx(0.075)
        assert penalty("unknown_penalty", unread, unread) == 0.15
        assert penalty("repeat_penalty", unread, unread) == 0.0, "what cannot be read repeats nothing"
        assert penalty("repeat_penalty", fine, fine, wait, fallback) == pytest.approx(0.1)
        assert penalty("fallback_penalty", fallback) == 0.5
        assert penalty("fallback_penalty", fallback, fine) == 0.25
        assert penalty("wait_penalty", wait) == 0.3
        assert penalty("wait_penalty", wait, fine) == 0.15

    def test_efficiency_never_falls_below_zero(self):
        assert shape([TurnEvidence("click", i) for i in range(9)], 0.0, max_turns=8)[1]["efficiency"] == 0.0

    def test_an_episode_without_turns_keeps_its_task_reward(self):
        reward, terms = shape([], 0.0, max_turns=8)
        assert reward == pytest.approx(0.3 * 0.05), "nothing was used of the turns allowed"
        assert terms["tool_calling"] == 0.0

    @given(
        st.lists(
            st.builds(
                TurnEvidence,
                st.sampled_from(["click", "type", "wait", "done", ""]),
                st.integers(0, 2),
                st.booleans(),
                st.booleans(),
                st.booleans(),
                st.booleans(),
                st.floats(0, 1),
                st.floats(0, 1),
                st.booleans(),
            ),
            max_size=12,
        ),
        st.floats(0, 1),
    )
    def test_the_reward_is_its_terms_put_together(self, turns, task_reward):
        reward, terms = shape(turns, task_reward, max_turns=8)
        weights = RewardWeights()
        parts = ("parse_valid", "executed", "a11y_grounding", "tool_calling", "efficiency", "screen_diff")
        parts += ("a11y_delta", "terminal_changed")
        assert all(0.0 <= terms[name] <= 1.0 + 1e-12 for name in parts)
        assert terms["partial"] == pytest.approx(sum(getattr(weights, name) * terms[name] for name in parts))
        penalties = sum(value for name, value in terms.items() if name.endswith("_penalty"))
        assert reward == pytest.approx(min(1.0, max(0.0, task_reward + 0.3 * terms["partial"] - penalties)))
        assert shape(turns, task_reward, max_turns=8) == (reward, terms), "no noise"


class TestEvidence:
    def test_changes_are_read_from_the_next_observation(self):
        seen = evidence(
            play(
                turn(Click(1, 1), 0, accessibility_tree="a\nb", terminal="$"),
                turn(Type("x"), 51, accessibility_tree="a\nc", terminal="$ x"),
                turn(Done(), 51, accessibility_tree="a\nc", terminal="$ x"),
            )
        )
        assert [each.screen_diff for each in seen] == pytest.approx([0.2, 0.0, 0.0])
        assert [each.a11y_delta for each in seen] == [0.5, 0.0, 0.0]
        assert [each.terminal_changed for each in seen] == [True, False, False]

    def test_kinds_are_canonical(self):
        actions = [Click(1, 1, "left", 2), Move(1, 1), Drag(1, 1), Scroll(1), Type(""), Key(("a",)), Wait(), Done()]
        kinds = [each.kind for each in evidence(play(*map(turn, [*actions, Answer("x"), Code("x"), None])))]
        assert kinds == ["click", "move", "drag", "scroll", "type", "key", "wait", "done", "answer", "code", ""]

    def test_an_unread_turn_was_neither_parsed_nor_executed(self):
        (seen,) = evidence(play(turn(None)))
        assert (seen.parsed, seen.executed) == (False, False)

    def test_flags_come_from_the_turn(self):
        (seen,) = evidence(play(replace(turn(Click(1, 1)), executed=False, fallback=True)))
        assert (seen.parsed, seen.executed, seen.fallback) == (True, False, True)

    def test_what_is_not_observed_does_not_change(self):
        blind = Turn(Observation(None), "", Click(1, 1))
        seen = evidence(play(blind, turn(Click(1, 1), 9, accessibility_tree="a", terminal="$"), blind))
        assert [(each.screen_diff, each.a11y_delta, each.terminal_changed) for each in seen] == [(0.0, 0.0, False)] * 3

    def test_a_repeat_is_an_equal_action_value(self):
        def penalty(*actions: Action) -> float:
            return shaped_reward(play(*map(turn, actions)), max_turns=8)[1]["repeat_penalty"]

        assert penalty(Click(1, 1), Click(1, 1)) > 0
        assert penalty(Click(1, 1), Click(1, 2)) == 0
        assert penalty(Click(1, 1), Click(1, 1, "right")) == 0
        assert penalty(Type("a"), Type("b")) == 0
        assert penalty(Key(("a",)), Key(("b",))) == 0
        assert penalty(Click(1, 1), Type("a"), Click(1, 1)) == 0

    def test_encoded_and_raw_screens_are_the_same_screen(self):
        rng = np.random.default_rng(0)
        first, second = (Screenshot.from_array(rng.integers(0, 256, (128, 160, 3), np.uint8)) for _ in range(2))
        assert screen_difference(first, first.encode("png")) == 0.0
        assert screen_difference(first, second.encode("webp")) == screen_difference(first, second) > 0.0

    def test_a_difference_is_the_share_of_the_screen_that_turned_from_black_to_white(self):
        pixels = np.zeros((128, 160, 3), np.uint8)
        half = pixels.copy()
        half[:, :80] = 255
        assert screen_difference(Screenshot.from_array(pixels), Screenshot.from_array(half)) == pytest.approx(0.5)
        assert screen_difference(screen(0), screen(255, 1920, 1080)) == 1.0


TREES = {
    "simulated": "role\tname\tstate\tbounds\nbutton\tSave\tenabled\t32,64,32,32\nwindow\t\t\t0,0,160,128",
    "osworld": 'tag\tname\ttext\tposition (top-left x&y)\tsize (w&h)\npush-button\tSave\t""\t(32, 64)\t(32, 32)\n'
    "panel\t\t\t(0, 0)\t(160, 128)",
}


class TestGrounding:
    @pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
    def test_a_click_inside_a_named_node(self, tree):
        assert is_grounded(Click(32, 64), tree)
        assert is_grounded(Click(63, 95, "right"), tree)
        assert not is_grounded(Click(64, 64), tree)
        assert not is_grounded(Click(32, 63), tree), "the surrounding node has no name"
        assert not is_grounded(Move(40, 70), tree)
        assert not is_grounded(None, tree)

    @pytest.mark.parametrize("tree", [None, "", "button Save", "button\tSave\tnowhere", "button\tSave\t1,2,3"])
    def test_trees_that_name_no_place(self, tree):
        assert not is_grounded(Click(1, 2), tree)

    def test_it_is_a_term(self):
        tree = TREES["simulated"]
        played = play(turn(Click(40, 70), accessibility_tree=tree), turn(Click(1, 1), accessibility_tree=tree))
        assert shaped_reward(played, max_turns=8)[1]["a11y_grounding"] == 0.5


def test_a_success_keeps_its_reward_when_it_is_clean():
    played = play(turn(Click(40, 70)), turn(Type("a"), 9), turn(Done(), 18))
    reward, terms = shaped_reward(played, max_turns=8)
    assert reward == 1.0
    assert terms["task_reward"] == 1.0


def test_an_episode_that_was_not_judged_has_no_reward():
    with pytest.raises(ValueError, match="t1 was not judged"):
        shaped_reward(play(turn(Click(1, 1)), task_reward=None), max_turns=8)


def test_it_is_fast():
    """0.08 ms a turn measured at 160 x 128; the bound leaves room for a busy machine."""
    rng = np.random.default_rng(0)
    screens = [Screenshot.from_array(rng.integers(0, 256, (128, 160, 3), np.uint8)) for _ in range(8)]
    played = play(*(Turn(Observation(each), "", Click(i, 1)) for i, each in enumerate(screens)))
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        shaped_reward(played, max_turns=8)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) / 8 < 0.3e-3
