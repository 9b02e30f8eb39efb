"""Values and gradients against the figures of the reference implementations.

    pytest tests/trainers/test_golden.py --golden-dir DIR

DIR may hold any subset of the files. Every case of every file in it is a test; a file or a case that no check knows
fails.
"""

import json
from pathlib import Path

import pytest

from tests.trainers.golden import evaluation, others, sdpo, trl, verl, verl_corrections
from tests.trainers.golden.registry import CHECKS, INPUTS, OWN, cases_in, folder_of, verify

MODULES = (evaluation, others, sdpo, trl, verl, verl_corrections)
OWN_LIMIT_BYTES = 150_000


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden" in metafunc.fixturenames:
        folder = folder_of(metafunc.config.getoption("--golden-dir"))
        found = [(folder, file, case) for file, case in cases_in(folder)] or [(folder, None, None)]
        metafunc.parametrize("golden", found, ids=[f"{file}::{case}" if file else "empty" for _, file, case in found])


def test_reference_figures(golden: tuple[Path, str | None, str | None]) -> None:
    folder, file, case = golden
    if file is None or case is None:
        pytest.fail(f"{folder} holds no golden file; give a folder of *.json with --golden-dir")
    verify(folder, file, case)


def write(folder: Path, file: str, cases: dict[str, object]) -> Path:
    (folder / f"{file}.json").write_text(json.dumps({"source": "here", "cases": cases}))
    return folder


def test_an_unknown_file_fails(tmp_path: Path) -> None:
    write(tmp_path, "never_heard_of", {"grpo_std": {}})
    assert list(cases_in(tmp_path)) == [("never_heard_of", "grpo_std")]
    with pytest.raises(pytest.fail.Exception, match=r"0 checks know the case 'grpo_std' of never_heard_of\.json"):
        verify(tmp_path, "never_heard_of", "grpo_std")


def test_an_unknown_case_fails(tmp_path: Path) -> None:
    write(tmp_path, "verl_advantages", {"grpo_of_the_future": {}})
    with pytest.raises(pytest.fail.Exception, match="grpo_of_the_future"):
        verify(tmp_path, "verl_advantages", "grpo_of_the_future")


def test_an_unknown_field_fails(tmp_path: Path) -> None:
    write(tmp_path, "verl_misc", {"agg|token-mean": {"loss_mat": "advantages", "value": 0.0, "grad": []}})
    with pytest.raises(pytest.fail.Exception, match="grad"):
        verify(tmp_path, "verl_misc", "agg|token-mean")


def test_a_wrong_figure_fails(tmp_path: Path) -> None:
    write(tmp_path, "verl_misc", {"agg|token-mean": {"loss_mat": "advantages", "value": 123.0}})
    with pytest.raises(AssertionError):
        verify(tmp_path, "verl_misc", "agg|token-mean")


def test_the_own_copy_is_small_and_touches_every_file() -> None:
    files = list(OWN.glob("*.json"))
    assert sum(path.stat().st_size for path in files) < OWN_LIMIT_BYTES
    assert {path.stem for path in files} == {*CHECKS, "inputs_common"}
    assert set(INPUTS) <= set(CHECKS)
    for file, case in cases_in(OWN):
        verify(OWN, file, case)
