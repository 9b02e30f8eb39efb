"""Evaluation on the way: every `rl.eval_every` updates the policy plays tasks that this run does not practise.

They are set aside from the training tasks, so that the best policy can be chosen by them and the held-out tasks stay
unseen. What a run starts from, and Entropulse rounds, may have learnt from them; that raises all figures of the curve
alike. Each evaluation is a partition of the store, `eval-<version>-<update>`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from flywheel.config import Config
from flywheel.errors import ConfigError
from flywheel.jobs.base import Progress, Quiet
from flywheel.jobs.evaluate import measure
from flywheel.jobs.policy_gradient.snapshots import snapshot
from flywheel.jobs.pool import RolloutPool, begun
from flywheel.seeds import derive_seed
from flywheel.store.store import TrajectoryStore
from flywheel.trainers.rl import PolicyGradient
from flywheel.types import Task


@dataclass(slots=True)
class Validated:
    """What was measured on the way, by update; part of the trainer's state."""

    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def best(self) -> int | None:
        """The update with the highest success, the first of equals; None before there is one."""
        first = max(self.curve, key=lambda point: point["success"], default=None)
        return int(first["update"]) if first else None

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.curve = list(state["curve"])


def set_aside(config: Config, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Tasks to practise, and the `rl.eval_tasks` to be evaluated on; none of these without `rl.eval_every`.

    Which ones is up to the experiment's seed alone, so that runs of one experiment can be compared.
    Raises `ConfigError` where nothing is left to practise, or nothing to choose the best policy by.
    """
    rl = config.rl
    if not rl.eval_every:
        if rl.keep == "best":
            raise ConfigError("rl.keep=best needs evaluations to choose by; set rl.eval_every, for example to 4.")
        return list(tasks), []
    if rl.eval_tasks >= len(tasks):
        raise ConfigError(
            f"rl.eval_tasks={rl.eval_tasks} leaves none of {len(tasks)} training tasks to practise; ask for fewer."
        )
    random = np.random.default_rng(derive_seed(config.seed, "validation"))
    apart = set(random.permutation(len(tasks))[: rl.eval_tasks].tolist())
    return (
        [task for i, task in enumerate(tasks) if i not in apart],
        [task for i, task in enumerate(tasks) if i in apart],
    )


@dataclass(frozen=True, slots=True)
class Validation:
    """Between the updates of one run.

    Args:
        args: of the stage.
        tasks: set aside.
        save: writes a state to go back to.
    """

    config: Config
    args: Mapping[str, Any]
    pool: RolloutPool
    store: TrajectoryStore
    tasks: Sequence[Task]
    validated: Validated
    trainer: PolicyGradient
    save: Callable[[], None]
    progress: Progress

    def measure(self) -> None:
        """Evaluate the policy as it is now, where that is due; keep its state if it is the best to be published."""
        if not self._due:
            return
        update, partition = self.trainer.updates, f"eval-{self.args['version']}-{self.trainer.updates:04d}"
        self.trainer.learner.hand_over()
        with begun(self.store, partition, self.config.experiment) as publication:
            report, _, played = measure(
                self.config,
                self.pool,
                self.tasks,
                snapshot(self.args, update),
                publication,
                split="train",
                seed=derive_seed(self.config.seed, "validation"),
                progress=Quiet(),
            )
            self.store.seal(partition, publication.attempt, played, self.config.experiment)
        interval = {"ci_low": report.ci_low, "ci_high": report.ci_high}
        counts = {"episodes": report.episodes, "env_errors": report.env_errors}
        self.validated.curve.append({"update": update, "success": report.success_rate, **interval, **counts})
        self.progress.metrics(update, {"validation_success": report.success_rate})
        self.progress.log(
            f"update {update}: {report.success_rate:.1%} [{report.ci_low:.1%}, {report.ci_high:.1%}] of "
            f"{report.episodes} tasks that are not practised."
        )
        if self.config.rl.keep == "best" and self.validated.best == update:
            self.save()

    @property
    def _due(self) -> bool:
        rl, update = self.config.rl, self.trainer.updates
        known = any(point["update"] == update for point in self.validated.curve)
        return bool(rl.eval_every) and not known and (update % rl.eval_every == 0 or update >= rl.steps)
