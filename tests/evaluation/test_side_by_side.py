"""Algorithms side by side: what is pooled, what is hardest, and what the page shows."""

import pytest

from flywheel.errors import DataError
from flywheel.evaluation.plots import success_in_training, success_side_by_side
from flywheel.evaluation.report import EpisodeResult, pool, summarise
from flywheel.evaluation.side_by_side import (
    Run,
    hardest_family,
    side_by_side_json,
    side_by_side_page,
    standings,
)
from flywheel.evaluation.statistics import wilson
from flywheel.types import EvalReport, PolicyRef

TASKS = {f"{family}-{n}": family for family in ("click", "menu") for n in range(4)}
MENU = frozenset(task for task, family in TASKS.items() if family == "menu")


def report(version: str, solved: set[str], lost: frozenset[str] = frozenset()) -> EvalReport:
    results = [
        EpisodeResult(
            task, family, 1, False, None if task in lost else float(task in solved), "setup" if task in lost else None
        )
        for task, family in TASKS.items()
    ]
    return summarise(PolicyRef(version, "x"), "heldout", 0, results)


START = report("iter-01", {"click-0", "click-1", "menu-0"})
RUNS = [
    Run("gspo", 0, report("gspo", set(TASKS)), (0.25, 0.5)),
    Run("grpo", 0, report("grpo", {"click-0"}), (0.25, 0.25)),
    Run("gspo", 1, report("gspo", {"click-0", "click-1", "menu-0", "menu-1"}), (0.5, 0.75)),
]


def test_the_hardest_family_is_the_one_that_the_start_solves_least() -> None:
    assert hardest_family(START) == "menu"
    assert hardest_family(report("all", set(TASKS))) == "click"


def test_pooled_runs_add_up() -> None:
    lost = report("gspo", set(TASKS), lost=frozenset({"menu-3"}))
    pooled = pool([RUNS[2].report, lost])
    assert (pooled.solved, pooled.episodes, pooled.env_errors) == (4 + 7, 8 + 7, 1)
    assert (pooled.ci_low, pooled.ci_high) == wilson(11, 15)
    assert pooled.by_family["menu"]["solved"] == 2 + 3
    assert pooled.per_task["menu-1"] == (1.0, 1.0)
    assert pooled.per_task["menu-3"] == (0.0,)
    with pytest.raises(DataError, match="no report to pool"):
        pool([])


def test_runs_stand_together_by_algorithm_and_against_the_start() -> None:
    gspo, grpo = standings(START, RUNS, MENU)
    assert (gspo.name, gspo.seeds, grpo.name, grpo.seeds) == ("gspo", (0, 1), "grpo", (0,))
    assert gspo.total["success_rate"] == pytest.approx(12 / 16)
    assert gspo.family["success_rate"] == pytest.approx(6 / 8)
    assert gspo.family_gain.tasks == 4
    assert gspo.family_gain.difference.mean == pytest.approx(6 / 8 - 1 / 4)
    assert (gspo.family_gain.only_first, gspo.family_gain.only_second) == (0, 3)
    assert grpo.gain.difference.mean == pytest.approx(1 / 8 - 3 / 8)


def test_the_page_holds_the_table_and_two_pictures_and_needs_nothing_else() -> None:
    found = standings(START, RUNS, MENU)
    page = side_by_side_page(START, RUNS, found, [(("all tasks", "gain"), [("<gspo>", "+50.0")])])
    assert "&lt;gspo&gt;" in page
    assert "+50.0" in page
    assert page.count("data:image/png;base64,iVBOR") == 2
    assert "http" not in page
    content = side_by_side_json(START, RUNS, found)
    assert content["hardest_family"] == "menu"
    assert [run["seed"] for run in content["runs"]] == [0, 0, 1]


def test_pictures_are_drawn_for_one_name_and_for_runs_of_unequal_length() -> None:
    rates = {"success_rate": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    assert success_side_by_side({"all": {"start": rates}}).startswith(b"\x89PNG")
    assert success_in_training({"gspo": [(0.1, 0.2), (0.3,)]}).startswith(b"\x89PNG")
