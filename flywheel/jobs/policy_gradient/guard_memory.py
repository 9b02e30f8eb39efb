"""What a run of policy gradient knows of itself and guards have changed in it: parts of the trainer's state.

A run that is killed and goes on does so with the same counts, learning rate, clip, KL term, cap and weight.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flywheel.jobs.policy_gradient.evaluations import Evaluations
from flywheel.jobs.policy_gradient.validation import Validated
from flywheel.sections import GuardsConfig
from flywheel.trainers.gradients import GradientWatch
from flywheel.trainers.guards import Guards, guards_of


@dataclass(slots=True)
class Adjusted:
    """What reactions have changed. `lr` is a factor; `rl` holds fields of `RlConfig`; `taken` is what was done."""

    lr: float = 1.0
    rl: dict[str, Any] = field(default_factory=dict)
    max_turns: int | None = None
    resample: bool = False
    restores: int = 0
    taken: list[dict[str, Any]] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class Memory:
    """What was measured and changed on the way. Without `rl.guards.enabled` no guard speaks."""

    def __init__(self, config: GuardsConfig) -> None:
        self.guards = Guards(guards_of(config) if config.enabled else ())
        self.gradients = GradientWatch(config)
        self.evaluations = Evaluations(config)
        self.adjusted = Adjusted()
        self.validated = Validated()

    @property
    def kept(self) -> set[int]:
        """Updates whose states may still be gone back to."""
        best = self.validated.best
        return {self.evaluations.best} if best is None else {self.evaluations.best, best}

    @property
    def parts(self) -> dict[str, Any]:
        """For the trainer's state."""
        names = ("guards", "gradients", "evaluations", "adjusted", "validated")
        return {name: getattr(self, name) for name in names}

    def report(self) -> dict[str, Any]:
        """For the job's result: the table as it stands, every reaction in order, and every evaluation."""
        return {
            "guards": self.guards.rows(),
            "reactions": self.adjusted.taken,
            "validation": self.validated.curve,
        }
