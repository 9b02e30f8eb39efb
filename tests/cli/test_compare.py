"""`compare-algorithms` for real and small: cells of their own, a table, and nothing done twice."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Flywheel
from tests.tiny import Tiny

SMALL = ("rl.prompts=2", "rl.group=2", "rl.minibatches=1", "env.families=[click,check]", "eval.episodes=6")


@pytest.fixture
def compare(staged: Flywheel, tiny: Tiny, tmp_path: Path) -> Flywheel:
    settings = [word for setting in (f"home={tmp_path}", *SMALL) for word in ("--set", setting)]
    return lambda *given: staged("compare-algorithms", "--policy", tiny.policy.uri, "--steps", 1, *given, *settings)


def trained(home: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in home.glob("experiments/*/checkpoints/*/policy.json")}


def test_cells_are_made_once_and_shown_side_by_side(compare: Flywheel, tmp_path: Path) -> None:
    target, page = tmp_path / "side.json", tmp_path / "side.html"
    ran = compare(
        "--algorithms", "gspo,sdpo", "--seeds", "0", "--json", target, "--html", page, "--only", "sdpo:rl.lr=1e-4"
    )
    assert ran.code == 0, ran.err
    content = json.loads(target.read_text())
    assert [(run["algorithm"], run["seed"], len(run["curve"])) for run in content["runs"]] == [
        ("gspo", 0, 1),
        ("sdpo", 0, 1),
    ]
    assert content["start"]["episodes"] == 6
    assert content["hardest_family"] in content["start"]["by_family"]
    assert [row["name"] for row in content["algorithms"]] == ["gspo", "sdpo"]
    assert "all tasks" in ran.out
    assert f"{content['hardest_family']}, the hardest" in ran.out
    assert page.read_text().count("data:image/png") == 2
    experiments = {path.name for path in tmp_path.glob("experiments/*")}
    assert sorted(name.rsplit("-", 1)[0] for name in experiments) == [
        "default-gspo-0",
        "default-sdpo-0",
        "default-start",
    ]
    specs = [json.loads(path.read_text()) for path in tmp_path.glob("experiments/*/runs/grpo-*/spec.json")]
    assert [spec["config"]["rl"]["guards"]["enabled"] for spec in specs] == [False, False]
    before = trained(tmp_path)
    again = compare("--algorithms", "gspo,sdpo", "--seeds", "0", "--only", "sdpo:rl.lr=1e-4")
    assert again.code == 0, again.err
    assert trained(tmp_path) == before
    assert {path.name for path in tmp_path.glob("experiments/*")} == experiments


def test_what_cannot_be_compared_is_one_sentence(compare: Flywheel, staged: Flywheel, tmp_path: Path) -> None:
    assert "--seeds 1,x is no list of whole numbers" in compare("--seeds", "1,x").refusal
    assert "--algorithms holds an empty name" in compare("--algorithms", "gspo,").refusal
    assert "must name one of gspo" in compare("--algorithms", "gspo", "--only", "ppo:rl.lr=1").refusal
    assert "does not exist" in compare("--html", tmp_path / "no" / "page.html").refusal
    nothing = staged("compare-algorithms", "--set", f"home={tmp_path}")
    assert "No policy has been evaluated yet" in nothing.refusal
