"""Checkers of the simulated desktop, in the shape of OSWorld's evaluators.

`{"func": F, "result": {"type": R}, "expected": {"type": "rule", "rules": {"expected": X}}}`: a getter `R` reads the
final state, a metric `F` compares it with `X`. `func`, `result` and `expected` may be lists of equal length, joined
by `conj` ("and" unless told otherwise). `{"func": "infeasible"}` is OSWorld's own mark of a task whose right answer is
to say that it cannot be done.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flywheel.datasets.task_files import INFEASIBLE
from flywheel.errors import EvaluatorError

State = Mapping[str, Any]


def _exact_match(result: Any, rules: Mapping[str, Any]) -> float:
    return float(result == rules["expected"])


METRICS: dict[str, Callable[[Any, Mapping[str, Any]], float]] = {"exact_match": _exact_match}
"""Name of a metric -> (what a getter read, rules) -> score in [0, 1]."""

GETTERS: dict[str, Callable[[State], Any]] = {
    "simulated_state": lambda state: {key: state[key] for key in ("events", "fields", "checks")},
    "simulated_events": lambda state: state["events"],
    "simulated_fields": lambda state: state["fields"],
    "simulated_checks": lambda state: state["checks"],
    "simulated_answer": lambda state: state["answer"],
}
"""Name of a result type -> what it reads from the desktop's state."""


def evaluate(evaluator: Mapping[str, Any], state: State, initial: State) -> float:
    """1.0 when the task is solved, else 0.0.

    Saying `failure` is right on an infeasible task whose desktop was left as it was, and wrong on every other; saying
    `success` on an infeasible task is wrong.
    """
    problem = problem_of(evaluator)
    if problem:
        raise EvaluatorError(problem)
    if evaluator["func"] == INFEASIBLE:
        untouched = all(state[key] == initial[key] for key in ("events", "fields", "checks"))
        return float(state["status"] == "failure" and untouched)
    if state["status"] == "failure":
        return 0.0
    scores = [
        METRICS[func](GETTERS[result["type"]](state), expected["rules"])
        for func, result, expected in zip(*_columns(evaluator), strict=True)
    ]
    return max(scores) if evaluator.get("conj") == "or" else min(scores)


def problem_of(evaluator: Mapping[str, Any]) -> str | None:
    """One sentence when this desktop cannot run the evaluator, else None."""
    if "func" not in evaluator:
        return "The evaluator has no 'func'."
    if evaluator["func"] == INFEASIBLE:
        return None
    funcs, results, expecteds = _columns(evaluator)
    if not funcs or not len(funcs) == len(results) == len(expecteds):
        return "The evaluator's func, result and expected must be lists of the same length."
    for func, result, expected in zip(funcs, results, expecteds, strict=True):
        if func not in METRICS:
            return f"The evaluator has func {func!r}; the simulated desktop knows {', '.join([*METRICS, INFEASIBLE])}."
        if not isinstance(result, Mapping) or result.get("type") not in GETTERS:
            return f"The evaluator has result {result!r}; its type must be one of {', '.join(GETTERS)}."
        rules = expected.get("rules") if isinstance(expected, Mapping) else None
        if not isinstance(rules, Mapping) or "expected" not in rules:
            return "The evaluator's expected must be {'type': 'rule', 'rules': {'expected': ...}}."
    if evaluator.get("conj", "and") not in ("and", "or"):
        return f"The evaluator has conj {evaluator['conj']!r}; write 'and' or 'or'."
    return None


def _columns(evaluator: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    values = [evaluator.get(key) for key in ("func", "result", "expected")]
    if isinstance(values[0], list):
        func, result, expected = (value if isinstance(value, list) else [] for value in values)
        return func, result, expected
    return [values[0]], [values[1]], [values[2]]
