"""`flywheel demo`: the whole flywheel, start to end, with what came out of it."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flywheel.cli.options import EMBEDDED, JsonPath, Profile, Settings, configure
from flywheel.cli.output import check_writable, out, rate, show_facts, show_table, write_json

if TYPE_CHECKING:
    from flywheel.assets.driver import Event, FlywheelRun, StageRecord
    from flywheel.cli.progress import Bar
    from flywheel.config import Config

SHORT = (
    "home=.flywheel-short",
    "tasks.train=1000",
    "tasks.heldout=120",
    "eval.episodes=120",
    "sft.steps=100",
    "rollout.tasks=320",
    "flywheel.steps=40",
    "flywheel.min_iterations=2",
    "flywheel.max_iterations=2",
    "flywheel.min_successes=4",
    "flywheel.max_collapse=0.5",
    "rl.steps=4",
)
"""Every stage, small, with gates that the noise of 120 episodes does not trip: it shows that all of it works. In a home
of its own, because what is made with these settings is nothing that a full demo could go on from."""
LINE = "{:<22} {:>9}  {:<22} {:>8} {:>8}"
KEYS = ("stage", "iteration", "success_rate", "ci_low", "ci_high", "episodes", "wall_seconds")
CONTROL = "control_eval_report"
COLUMNS = ("sft", "flywheel", "policy_gradient", "control")
"""What success by family is shown of: before, after the best iteration, after policy gradient, and the control."""
QUERIES = (
    "SELECT policy, success_rate, episodes FROM policies ORDER BY first_iteration",
    "SELECT policy, family, success_rate FROM eval_results ORDER BY success_rate LIMIT 10",
    "SELECT action_type, count(*) AS n, avg(len(completion_ids)) AS tokens FROM steps GROUP BY ALL ORDER BY n DESC",
)


def demo(
    json: JsonPath = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Short for --set seed=N.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Every stage, but small: to see that it works.")] = False,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Run the whole flywheel: alignment, iterations until success stops rising, policy gradient, and the control.

    What is finished is kept: a demo that was stopped goes on where it was.
    """
    config = configure(profile, [*(SHORT if short else ()), *(settings or ())], *_seed(seed))
    check_writable(json)
    from flywheel.assets.driver import run_flywheel
    from flywheel.cli.memory import PeakMemory
    from flywheel.cli.progress import bar
    from flywheel.jobs.launcher import Launcher
    from flywheel.resources.instance import driver_instance

    out().print(f"[bold]{LINE.format('stage', 'iteration', 'success, 95% interval', 'episodes', 'seconds')}[/bold]")
    with PeakMemory() as peak, Launcher() as launcher, bar() as shown, driver_instance(config) as instance:
        done = run_flywheel(config, instance, _Narrator(shown), launcher)
    result = Result(config, done, peak.gigabytes)
    write_json(json, result.to_json())
    _conclude(result, profile)


def _seed(seed: int | None) -> tuple[str, ...]:
    return () if seed is None else (f"seed={seed}",)


class _Narrator:
    """Prints a line for each finished stage; what runs at present is the bar's."""

    def __init__(self, bar: "Bar") -> None:
        self._bar = bar

    def __call__(self, event: "Event") -> None:
        from flywheel.assets.driver import Decided, LogLine, StageRecord, StageStarted
        from flywheel.jobs.launcher import Advance

        match event:
            case StageStarted(stage, key):
                self._bar.begin(stage, key)
            case Advance():
                self._bar.advance(event)
            case LogLine(text):
                self._bar.say(text)
            case StageRecord():
                out().print(_line(event), markup=False)
            case Decided(reason=reason):
                out().print(f"  {reason}", style="italic")


def _line(record: "StageRecord") -> str:
    iteration = "" if record.iteration is None else str(record.iteration)
    success = "" if record.success_rate is None else rate(_keys(record))
    episodes = "" if record.episodes is None else str(record.episodes)
    seconds = "kept" if record.skipped else f"{record.wall_seconds:.1f}"
    return LINE.format(record.stage, iteration, success, episodes, seconds)


def _keys(record: "StageRecord") -> dict[str, Any]:
    return {key: getattr(record, key) for key in KEYS}


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished demo has to say."""

    config: "Config"
    run: "FlywheelRun"
    peak_gigabytes: float | None

    def to_json(self) -> dict[str, Any]:
        """`stages` lists every asset in order, `control` repeats the one that all is compared with."""
        return {
            "seed": self.config.seed,
            "stages": [_keys(record) for record in self.run.stages],
            "control": _keys(self.control),
            "best_iteration": self.run.best_iteration,
            "stopped_because": self.run.reason,
            "figures": self.figures(),
            "families": self.families(),
        }

    @property
    def control(self) -> "StageRecord":
        return next(record for record in self.run.stages if record.stage == CONTROL)

    def figures(self) -> dict[str, float | None]:
        """Throughput of rollouts and training over all iterations, and what the demo as a whole cost."""
        return {
            "env_steps_per_second": self._rate("rollouts", "steps", "steps_per_second"),
            "training_tokens_per_second": self._rate("sft", "tokens", "tokens_per_second"),
            "wall_seconds": self.run.wall_seconds,
            "overhead_share": self.run.overhead_seconds / self.run.wall_seconds,
            "peak_memory_gb": self.peak_gigabytes,
        }

    def _rate(self, stage: str, amount: str, rate: str) -> float | None:
        """Of all iterations together: early ones are slower, as a policy that fails talks and wanders more."""
        from flywheel.jobs.base import RunFolder
        from flywheel.workspace import Workspace, iteration_name

        names = [iteration_name(r.iteration or 0) for r in self.run.stages if r.stage == "eval_report"]
        folders = [RunFolder(Workspace(self.config).run_dir(stage, name)) for name in names]
        results = [result for folder in folders if (result := folder.read_result())]
        seconds = sum(result[amount] / result[rate] for result in results)
        return sum(result[amount] for result in results) / seconds if seconds else None

    def families(self) -> dict[str, dict[str, float]]:
        """Family -> success in each of `COLUMNS`."""
        from flywheel.assets.control import control_version
        from flywheel.assets.grpo import grpo_version
        from flywheel.assets.history import SFT, read_report
        from flywheel.workspace import Workspace, iteration_name

        best = iteration_name(self.run.best_iteration)
        versions = (SFT, best, grpo_version(best), control_version(best))
        reports = {
            title: read_report(Workspace(self.config), version)
            for title, version in zip(COLUMNS, versions, strict=True)
        }
        return {
            family: {title: report.by_family[family]["success_rate"] for title, report in reports.items()}
            for family in reports["sft"].by_family
        }


def _conclude(result: Result, profile: str) -> None:
    rows = [(name, *(f"{rates[title]:.1%}" for title in COLUMNS)) for name, rates in result.families().items()]
    out().print()
    show_table(("success by family", *(title.replace("_", " ") for title in COLUMNS)), rows)
    out().print(
        "The control has had as many training steps as the flywheel's best, on the demonstrations alone: "
        f"[bold]{rate(_keys(result.control))}[/bold].\n"
    )
    _show_figures(result.figures())
    show_next(result.config, profile)


def _show_figures(figures: Mapping[str, float | None]) -> None:
    share = figures["overhead_share"] or 0.0
    show_facts(
        {
            "environment steps a second": figures["env_steps_per_second"],
            "training tokens a second": figures["training_tokens_per_second"],
            "seconds in all": figures["wall_seconds"],
            "of them Dagster and process start-up": f"{share:.1%}",
            "peak memory, GB": figures["peak_memory_gb"],
        }
    )


def show_next(config: "Config", profile: str) -> None:
    """Commands that look at what was made."""
    chosen = {"home": config.home, "experiment": config.experiment}
    where = [f"--set {key}={value}" for key, value in chosen.items() if value != type(config).model_fields[key].default]
    name = "flywheel" if shutil.which("flywheel") else os.path.relpath(sys.argv[0])
    played = [*([] if profile == EMBEDDED else [f"--profile {profile}"]), *where]
    dev = f'make dev ARGS="{" ".join(played)}"' if played else "make dev"
    arguments = ("trajectories --partition iter-01", *(f'sql "{sql}"' for sql in QUERIES))
    out().print(f"\nEverything is in {config.home_path}. What next:\n", markup=False)
    for command in (dev, *(" ".join([name, given, *where]) for given in arguments)):
        out().print(f"  {command}", markup=False, soft_wrap=True)
