"""`flywheel compare-algorithms`: several algorithms from one starting policy, side by side.

Every run is an experiment of its own, named by algorithm, seed and a hash of all that decides it: nothing of the
flywheel is overwritten, and a run that is finished is not made again.
"""

import hashlib
import json as jsonlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flywheel.cli.options import EMBEDDED, JsonPath, Profile, Settings, configure
from flywheel.cli.output import check_writable, rate, show_table, write_json

if TYPE_CHECKING:
    from flywheel.cli.stages import Stages
    from flywheel.config import Config
    from flywheel.evaluation.report import Comparison, Rates
    from flywheel.evaluation.side_by_side import Run, Standing, Table
    from flywheel.types import EvalReport, PolicyRef

INDIFFERENT: dict[str, Any] = {
    "home": True,
    "experiment": True,
    "tracking": True,
    "store": True,
    "rl": {"save_every"},
    "model": {"threads"},
    "rollout": {"workers"},
}
"""Settings that do not decide what a run comes to."""
ALONE = "rl.guards.enabled=false"
"""Before all other settings."""


def compare_algorithms(
    algorithms: Annotated[
        str,
        typer.Option("--algorithms", metavar="NAMES", help="Names of the table of algorithms, separated by commas."),
    ] = "gspo,grpo,sdpo,ppo",
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="NUMBERS", help="Each algorithm is run once a seed.")
    ] = "0,1,2",
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="REF", help="Where all start; by default the flywheel's best.")
    ] = None,
    families: Annotated[
        str | None, typer.Option("--families", metavar="NAMES", help="Families to practise; short for rl.families.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Updates of each run; short for rl.steps.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="ALGORITHM:KEY=VALUE", help="A setting for one algorithm; may be given many times."
        ),
    ] = None,
    json: JsonPath = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="PATH", help="Also write a page with curves here.")
    ] = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Train with several algorithms from one policy, evaluate each on held-out tasks, and compare them with the start.

    Guards are off unless a setting turns them on: their rounds of SFT and pauses are no algorithm's own.

    What is finished is kept: a comparison that was stopped, or that gains an algorithm or a seed, goes on where it was.
    """
    from flywheel.cli.stages import stages
    from flywheel.evaluation.side_by_side import START, hardest_family, side_by_side_json, side_by_side_page, standings

    short = {"rl.families": families and f"[{families}]", "rl.steps": steps}
    common = [ALONE, *(settings or ()), *(f"{key}={value}" for key, value in short.items() if value is not None)]
    config = configure(profile, common)
    check_writable(json)
    check_writable(html)
    start = _start(config, policy)
    own = _own_settings(only, algorithms.split(","))
    cells = [
        _Cell(
            name,
            seed,
            _apart(configure(profile, [*common, *settings], f"rl.algorithm={name}"), f"{name}-{seed}", start),
        )
        for seed in _numbers(seeds)
        for name, settings in own.items()
    ]
    with stages(config) as run:
        before = _evaluated(run.of(_apart(config, START, start, frozenset({"rl"}))), start)
        runs = [_run(run.of(cell.config), cell, start) for cell in cells]
        tasks = _tasks_of(run.tasks("heldout"), hardest_family(before))
    found = standings(before, runs, tasks)
    tables = _tables(before, found)
    for titles, rows in tables:
        show_table(titles, rows)
    write_json(json, side_by_side_json(before, runs, found))
    if html is not None:
        html.write_text(side_by_side_page(before, runs, found, tables), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Cell:
    """One run to make, with settings and experiment of its own."""

    algorithm: str
    seed: int
    config: "Config"


def _start(config: "Config", policy: str | None) -> "PolicyRef":
    from flywheel.assets.history import best_report
    from flywheel.errors import PolicyError
    from flywheel.workspace import Workspace

    workspace = Workspace(config)
    if policy is None:
        best = best_report(workspace)
        if best is None:
            raise PolicyError("No policy has been evaluated yet; name one with --policy, or run `flywheel demo` first.")
        policy = best.policy.version
    return workspace.policy(policy)


def _numbers(seeds: str) -> list[int]:
    from flywheel.errors import ConfigError

    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {seeds} is no list of whole numbers; write for example --seeds 0,1,2.") from None


def _own_settings(only: Sequence[str] | None, algorithms: Sequence[str]) -> dict[str, list[str]]:
    """Algorithm -> the settings given for it alone."""
    from flywheel.errors import ConfigError

    if "" in algorithms:
        raise ConfigError("--algorithms holds an empty name; write for example --algorithms gspo,grpo.")
    own: dict[str, list[str]] = {name: [] for name in algorithms}
    for given in only or ():
        name, separator, setting = given.partition(":")
        if not separator or name not in own:
            raise ConfigError(
                f"--only {given} must name one of {', '.join(own)}, as in --only {algorithms[0]}:rl.lr=1e-4."
            )
        own[name].append(setting)
    return own


def _apart(config: "Config", name: str, start: "PolicyRef", indifferent: frozenset[str] = frozenset()) -> "Config":
    """The same in an experiment of its own, named after what is run and a hash of what decides it."""
    leave: dict[str, Any] = INDIFFERENT | dict.fromkeys(indifferent, True)
    decides = [config.model_dump(exclude=leave), start.fingerprint or start.uri]
    digest = hashlib.sha256(jsonlib.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
    return config.model_copy(update={"experiment": f"{config.experiment}-{name}-{digest}"})


def _run(run: "Stages", cell: _Cell, start: "PolicyRef") -> "Run":
    """Train unless the checkpoint is there, evaluate unless the report is."""
    from flywheel.evaluation.side_by_side import Run
    from flywheel.seeds import derive_seed

    version, workspace = cell.algorithm, run.workspace
    folder = workspace.checkpoint_dir(version)
    if not (folder / "policy.json").is_file():
        args = {
            "init": asdict(start),
            "tasks": run.tasks("train"),
            "out": str(folder),
            "version": version,
            "partition": version,
            "iteration": 0,
            "seed": derive_seed(run.config.seed, "compare", cell.seed),
        }
        run.run("grpo", version, args)
    metrics = map(jsonlib.loads, (workspace.run_dir("grpo", version) / "metrics.jsonl").read_text().splitlines())
    curve = tuple(float(point["success"]) for point in metrics if "success" in point)
    return Run(cell.algorithm, cell.seed, _evaluated(run, workspace.policy(version)), curve)


def _evaluated(run: "Stages", policy: "PolicyRef") -> "EvalReport":
    """Its report on held-out tasks; those of one comparison are drawn alike."""
    from flywheel.evaluation.report import from_json
    from flywheel.jobs.evaluation_args import evaluation_args

    path = run.workspace.report_path(policy.version)
    if not path.is_file():
        run.run("evaluate", policy.version, evaluation_args(run.workspace, policy, run.tasks("heldout")))
    return from_json(jsonlib.loads(path.read_text()))


def _tasks_of(file: str, family: str) -> frozenset[str]:
    from flywheel.envs.simulated.tasks import load_tasks
    from flywheel.evaluation.report import INFEASIBLE

    return frozenset(
        task.id for task in load_tasks(Path(file)) if family == (INFEASIBLE if task.infeasible else task.family)
    )


def _tables(start: "EvalReport", found: Sequence["Standing"]) -> "list[Table]":
    """Success in all, and in the hardest family."""
    from flywheel.evaluation.report import rates_of
    from flywheel.evaluation.side_by_side import hardest_family

    family = hardest_family(start)
    total = [(one.name, len(one.seeds), one.total, one.gain) for one in found]
    hardest = [(one.name, len(one.seeds), one.family, one.family_gain) for one in found]
    return [
        _table("all tasks", rates_of(start), total),
        _table(f"{family}, the hardest", start.by_family[family], hardest),
    ]


def _table(scope: str, start: "Rates", lines: "Sequence[tuple[str, int, Rates, Comparison]]") -> "Table":
    from flywheel.evaluation.side_by_side import START

    rows = [(name, str(seeds), rate(rates), _points(gain), f"{gain.p_value:.3f}") for name, seeds, rates, gain in lines]
    return (scope, "seeds", "success, 95% interval", "gain, points", "p"), [(START, "", rate(start), "", ""), *rows]


def _points(gain: "Comparison") -> str:
    """`+12.3 [4.1, 20.0]`: percentage points over the start, with the bootstrap interval over tasks."""
    mean, low, high = (100 * value for value in gain.difference)
    return f"{mean:+.1f} [{low:.1f}, {high:.1f}]"
