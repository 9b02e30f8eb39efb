"""Guards: every row of the table warns and reacts where it should, says nothing before it can, and survives a save."""

import json
import math

import pytest

from flywheel.sections import GuardsConfig
from flywheel.trainers.gradients import GradientWatch
from flywheel.trainers.guards import Finding, Guards, guards_of

CONFIG = GuardsConfig(window=1, rise=0)
SMOOTH = GuardsConfig(window=3, rise=0)


def guards(config: GuardsConfig = CONFIG) -> Guards:
    return Guards(guards_of(config))


def seen(made: Guards, metric: str, *values: float) -> list[Finding]:
    """What is found at the last of several updates."""
    found: list[Finding] = []
    for value in values:
        found = made.judge({metric: value})
    return found


def told(findings: list[Finding]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {finding.guard.name: (finding.level, finding.asks) for finding in findings}


FALLING = ("raise_clip", "add_kl", "halve_lr")
COLLAPSE = ("restore_best", "sft_round")
ROWS = [
    ("sampled_entropy", (1.0, 0.6), {}),
    ("sampled_entropy", (1.0, 0.45), {"entropy": ("warn", ())}),
    ("sampled_entropy", (1.0, 0.25), {"entropy": ("react", FALLING)}),
    ("sampled_entropy", (2.0, 0.2), {"entropy": ("react", FALLING), "entropy_collapse": ("react", COLLAPSE)}),
    ("distinct_actions", (1.6,), {}),
    ("distinct_actions", (1.4,), {"distinct_actions": ("react", FALLING)}),
    ("grad_norm_ratio", (4.0,), {}),
    ("grad_norm_ratio", (6.0,), {"grad_norm": ("warn", ())}),
    ("grad_norm_ratio", (21.0,), {"grad_norm": ("react", ("skip_step",))}),
    ("grad_norm_ratio", (math.inf,), {"grad_norm": ("react", ("skip_step",))}),
    ("recent_skips", (2.0,), {"grad_skips": ("warn", ())}),
    ("recent_skips", (3.0,), {"grad_skips": ("react", ("restore_best", "halve_lr"))}),
    ("zero_variance_groups", (0.5,), {}),
    ("zero_variance_groups", (0.6,), {"zero_variance": ("warn", ("resample",))}),
    ("zero_variance_groups", (0.95, 0.95), {"zero_variance": ("warn", ("resample",))}),
    ("zero_variance_groups", (0.95, 0.95, 0.95), {"zero_variance": ("react", ("pause",))}),
    ("zero_variance_groups", (0.95, 0.95, 0.6, 0.95, 0.95), {"zero_variance": ("warn", ("resample",))}),
    ("ref_kl", (0.04,), {}),
    ("ref_kl", (0.06,), {"ref_kl": ("warn", ("double_kl",))}),
    ("ref_kl", (0.3,), {"ref_kl": ("react", ("move_reference",))}),
    ("mean_abs_dlogp", (0.04,), {}),
    ("mean_abs_dlogp", (0.06,), {"mismatch": ("warn", ("correct",))}),
    ("mean_abs_dlogp", (0.2,), {"mismatch": ("react", ("pause",))}),
    ("mean_abs_dlogp", (math.nan,), {"mismatch": ("react", ("pause",))}),
    ("truncated", (0.2,), {}),
    ("truncated", (0.3,), {"truncated": ("react", ("cap_turns",))}),
    ("unparsed", (0.1,), {}),
    ("unparsed", (0.2,), {"unparsed": ("react", ("sft_round",))}),
    ("repeated", (0.1,), {}),
    ("repeated", (0.2,), {"repeated": ("react", ("pause",))}),
    ("shaping_gain", (0.05,), {}),
    ("shaping_gain", (0.06,), {"shaping": ("react", ("cut_shaping",))}),
    ("env_errors", (0.05,), {}),
    ("env_errors", (0.06,), {"env_errors": ("warn", ("exclude_rows",))}),
]


@pytest.mark.parametrize(("metric", "values", "expected"), ROWS)
def test_every_row_speaks_beyond_its_thresholds_and_not_before(
    metric: str, values: tuple[float, ...], expected: dict[str, tuple[str, tuple[str, ...]]]
) -> None:
    assert told(seen(guards(), metric, *values)) == expected


def test_every_guard_of_the_table_is_drilled_above() -> None:
    drilled = {name for _, _, expected in ROWS for name in expected}
    assert drilled == {guard.name for guard in guards_of(CONFIG)}
    assert {guard.metric for guard in guards_of(CONFIG)} == {metric for metric, _, _ in ROWS}


def test_a_noisy_figure_is_averaged_and_compared_with_its_own_start() -> None:
    made = guards(SMOOTH)
    for value in (0.9, 1.0, 1.1, 0.2, 1.0):  # one low update is noise
        assert made.judge({"sampled_entropy": value}) == []
    found = seen(made, "sampled_entropy", 0.15, 0.1, 0.2)
    assert told(found)["entropy"] == ("react", FALLING)
    assert found[0].value == pytest.approx(0.15)
    assert "entropy_collapse" not in told(found)
    assert str(found[0]) == "entropy is 0.15, below 0.3"


def test_what_a_policy_came_with_is_not_what_training_did_to_it() -> None:
    """A weak start repeats itself and cannot be read; only a rise by half is held against training."""
    made = guards(GuardsConfig(window=2, rise=1.5))
    for value in (0.12, 0.16, 0.2, 0.2):
        assert made.judge({"repeated": value, "unparsed": value}) == []
    assert set(told(seen(made, "repeated", 0.22, 0.22))) == {"repeated"}
    sound = guards(GuardsConfig(window=2, rise=1.5))
    assert told(seen(sound, "unparsed", 0.0, 0.01, 0.12, 0.12)) == {"unparsed": ("react", ("sft_round",))}


UNLESS_RISING = {"sampled_entropy": 0.1, "unparsed": 0.4, "repeated": 0.4}


@pytest.mark.parametrize("metric", UNLESS_RISING)
@pytest.mark.parametrize(
    ("success", "speaks"),
    [
        ((0.3, 0.4, 0.5, 0.6, 0.7, 0.7), False),
        ((0.3, 0.3, 0.3, 0.3, 0.3, 0.33), True),
        ((0.7, 0.7, 0.6, 0.5, 0.4, 0.3), True),
    ],
)
def test_what_comes_with_learning_is_no_fault(metric: str, success: tuple[float, ...], speaks: bool) -> None:
    """The same fall of entropy, or rise of a share, while success rises, stands still and falls."""
    made = guards(SMOOTH)
    sound = 1.0 if metric == "sampled_entropy" else 0.0
    values = 3 * [sound] + 3 * [UNLESS_RISING[metric]]
    found = [made.judge({metric: value, "success": rate}) for rate, value in zip(success, values, strict=True)]
    assert any(found) is speaks


def test_a_collapse_after_a_rise_is_still_one() -> None:
    made = guards(SMOOTH)
    for rate, entropy in ((0.3, 1.0), (0.4, 0.8), (0.5, 0.5), (0.6, 0.1), (0.7, 0.1), (0.8, 0.1)):
        assert made.judge({"success": rate, "sampled_entropy": entropy}) == []
    levels = [told(made.judge({"success": 0.8, "sampled_entropy": 0.1})) for _ in range(5)]
    assert levels[-2] == {}, "two windows must have passed"
    assert levels[-1] == {"entropy": ("react", FALLING), "entropy_collapse": ("react", COLLAPSE)}


def test_a_finding_names_the_limit_that_held() -> None:
    made = guards(GuardsConfig(window=1, rise=1.5))
    assert [str(one) for one in seen(made, "repeated", 0.12, 0.2)] == ["repeated is 0.2, above 0.18"]


def test_after_a_reaction_a_guard_counts_afresh() -> None:
    made = guards(SMOOTH)
    levels = [bool(made.judge({"unparsed": 0.5})) for _ in range(7)]
    assert levels == [False, False, True, False, False, True, False]
    dead = [told(guards_now) for guards_now in ([*made.judge({"zero_variance_groups": 1.0})] for _ in range(6))]
    assert [found["zero_variance"][0] for found in dead] == ["warn", "warn", "react", "warn", "warn", "react"]


def test_a_figure_that_is_missing_says_nothing() -> None:
    made = guards()
    assert made.judge({"success": 0.1}) == []
    assert made.records["entropy"].last is None


def test_the_table_remembers_last_and_worst_and_counts() -> None:
    made = guards()
    for value in (1.0, 0.4, 0.2, 0.8):
        made.judge({"sampled_entropy": value})
    row = made.rows()[0]
    assert row == {
        "guard": "entropy",
        "bad": "below",
        "warn": 0.5,
        "react": 0.3,
        "last": pytest.approx(0.8),
        "worst": pytest.approx(0.2),
        "warned": 1,
        "reacted": 1,
    }


def test_what_was_seen_survives_a_save() -> None:
    one, other = guards(SMOOTH), guards(SMOOTH)
    for value in (1.0, 1.0, 1.0, 0.3, 0.2):
        one.judge({"sampled_entropy": value, "unparsed": value, "success": value})
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    figures = {"sampled_entropy": 0.1, "unparsed": 0.4, "success": 0.1}
    assert told(other.judge(figures)) == told(one.judge(figures)) != {}
    assert other.rows() == one.rows()


def test_steps_of_wild_gradients_are_not_admitted() -> None:
    watch = GradientWatch(CONFIG)
    assert watch.admit(1e6), "nothing is known yet"
    assert all(watch.admit(1.0 + 0.1 * n) for n in range(6))
    assert watch.take()["recent_skips"] == 0.0
    assert watch.admit(15.0)
    assert not watch.admit(1000.0)
    assert not watch.admit(math.nan)
    assert not watch.admit(math.inf)
    figures = watch.take()
    assert figures["recent_skips"] == 3.0
    assert figures["grad_norm_ratio"] == math.inf
    assert watch.take()["grad_norm_ratio"] == 0.0, "of the steps since it was last asked"
    again = GradientWatch(CONFIG)
    again.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    assert not again.admit(100.0)
    assert again.take()["recent_skips"] == 4.0
    again.forgive()
    assert again.take()["recent_skips"] == 0.0


def test_refused_norms_do_not_move_the_median() -> None:
    """Or a burst of explosions would soon look like the usual."""
    watch = GradientWatch(CONFIG)
    for _ in range(5):
        watch.admit(1.0)
    assert not any(watch.admit(50.0) for _ in range(40))
