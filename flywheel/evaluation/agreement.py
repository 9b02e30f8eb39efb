"""How far a judge agrees with evaluators that know."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.evaluation.statistics import Interval, wilson


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` of `of`, with its 95% Wilson interval."""

    hits: int
    of: int

    @property
    def interval(self) -> Interval:
        return wilson(self.hits, self.of)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Episodes by what the judge said and what is true. `abstained` got no verdict that could be read."""

    true_success: int
    false_success: int
    true_failure: int
    false_failure: int
    abstained: int

    @property
    def rates(self) -> dict[str, Rate]:
        """Over episodes with a verdict; precision and recall are those of success."""
        right = self.true_success + self.true_failure
        wrong = self.false_success + self.false_failure
        return {
            "accuracy": Rate(right, right + wrong),
            "precision": Rate(self.true_success, self.true_success + self.false_success),
            "recall": Rate(self.true_success, self.true_success + self.false_failure),
        }


def agreement(judged: Sequence[bool | None], truth: Sequence[bool]) -> Agreement:
    """Compare verdicts (None: abstained) with what evaluators found. Raises ValueError if their numbers differ."""
    pairs = list(zip(judged, truth, strict=True))
    return Agreement(
        true_success=pairs.count((True, True)),
        false_success=pairs.count((True, False)),
        true_failure=pairs.count((False, False)),
        false_failure=pairs.count((False, True)),
        abstained=sum(said is None for said in judged),
    )


def to_json(found: Agreement) -> dict[str, Any]:
    """Counts, and each rate with its interval."""
    rates = {
        name: {"hits": rate.hits, "of": rate.of, "low": rate.interval.low, "high": rate.interval.high}
        for name, rate in found.rates.items()
    }
    return {**asdict(found), **rates}
