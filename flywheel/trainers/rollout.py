"""What a trainer gets: one judged trajectory and the document made of it."""

from dataclasses import dataclass

from flywheel.types import TrainingSample, Trajectory


@dataclass(frozen=True, slots=True)
class Rollout:
    """One judged trajectory as the trainer needs it: its document, and `reward`, which is maximised.

    A `replayed` one was sampled by another policy, and is corrected for that.
    """

    trajectory: Trajectory
    sample: TrainingSample
    reward: float
    replayed: bool = False
