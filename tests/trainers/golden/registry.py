"""Golden files and the checks that know their cases.

A golden file holds cases, by name, that a reference implementation computed. A check claims the names of one file that
match a pattern, and reads its parameters from the name and the case's own fields. A name that no check claims, or a
field that its check does not know, fails: nothing is skipped in silence.

Inputs are the file's own where it has some, else those of `inputs_common.json` beside it, else those of the default
folder (so that a folder may hold a single file).
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

REPOSITORY = Path(__file__).parents[3]
SHARED, OWN = REPOSITORY.parent / "shared" / "golden", REPOSITORY / "tests" / "golden"
COMMON = "inputs_common"


@dataclass(frozen=True)
class Golden:
    """One case: its figures, its neighbours in the file, the inputs and the match of its name."""

    case: Any
    cases: dict[str, Any]
    inputs: dict[str, Any]
    match: re.Match[str]

    def __getitem__(self, group: str) -> str:
        """A named part of the case's name."""
        return self.match[group]

    def tensor(self, name: str, *, grad: bool = False) -> Tensor:
        """An input as float64."""
        return torch.tensor(self.inputs[name], dtype=torch.float64, requires_grad=grad)

    @property
    def mask(self) -> Tensor:
        return self.tensor("response_mask").bool()

    @property
    def score_B(self) -> Tensor:
        return self.tensor("token_level_rewards").sum(-1)

    def only(self, *known: str) -> None:
        """Fail on fields that the check would not look at."""
        unknown = sorted(set(self.case) - set(known))
        if unknown:
            pytest.fail(f"case {self.match.string!r} has fields that its check does not know: {unknown}")


Check = Callable[[Golden], None]
CHECKS: dict[str, list[tuple[re.Pattern[str], Check]]] = {}
INPUTS: dict[str, set[str]] = {}


def check(file: str, pattern: str) -> Callable[[Check], Check]:
    """Claim the cases of `file` whose whole name matches."""

    def register(function: Check) -> Check:
        CHECKS.setdefault(file, []).append((re.compile(pattern), function))
        return function

    return register


def inputs_of(file: str, *names: str) -> None:
    """Entries of `file` that are inputs of its cases, not cases."""
    INPUTS[file] = set(names)


def folder_of(given: Path | None) -> Path:
    """The folder asked for, else the shared one, else the project's own copy of some figures."""
    if given is not None:
        return given
    return SHARED if SHARED.is_dir() else OWN


@cache
def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def cases_in(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, case) for everything in the folder that is to be checked, also what no check knows."""
    for path in sorted(folder.glob("*.json")):
        if path.stem != COMMON:
            known = INPUTS.get(path.stem, set())
            yield from ((path.stem, name) for name in read(path)["cases"] if name not in known)


def verify(folder: Path, file: str, name: str) -> None:
    """Run the one check that claims the case; fail if there is none."""
    document = read(folder / f"{file}.json")
    cases = document["cases"]
    claims = [(m, function) for pattern, function in CHECKS.get(file, []) if (m := pattern.fullmatch(name))]
    if len(claims) != 1:
        pytest.fail(f"{len(claims)} checks know the case {name!r} of {file}.json; it needs exactly one")
    match, function = claims[0]
    own = document.get("inputs") or cases.get("inputs")
    function(Golden(cases[name], cases, own or _common(folder), match))


def _common(folder: Path) -> dict[str, Any]:
    beside = folder / f"{COMMON}.json"
    path = beside if beside.exists() else folder_of(None) / beside.name
    return read(path)["cases"]


def number(pattern: str) -> str:
    """A named group that matches a number."""
    return rf"(?P<{pattern}>[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"


def close(actual: Any, expected: Any, tolerance: float, mask: Tensor | None = None) -> None:
    """Equal within `tolerance`, absolute and relative, under the mask."""
    got, want = (torch.as_tensor(x, dtype=torch.float64) for x in (actual, expected))
    assert got.shape == want.shape, f"shape {tuple(got.shape)} against {tuple(want.shape)}"
    if mask is not None:
        got, want = got[mask], want[mask]
    torch.testing.assert_close(got.detach(), want, atol=tolerance, rtol=tolerance)


def gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(loss, leaf)[0]
