"""`flywheel eval`: how often a policy solves tasks that it has never trained on."""

from typing import Annotated, Any, Literal

import typer

from flywheel.cli.options import EMBEDDED, JsonPath, PolicyName, Profile, Seed, Settings, configure
from flywheel.cli.output import check_writable, out, rate, show_facts, show_table, write_json


def evaluate(
    policy: PolicyName,
    split: Annotated[Literal["train", "heldout"], typer.Option(help="Which tasks.")] = "heldout",
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="How many; tasks repeat when there are fewer. Default: eval.episodes."),
    ] = None,
    seed: Seed = None,
    json: JsonPath = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Measure a policy: success with its 95% Wilson interval, by family. Trajectories go to the store."""
    from flywheel.cli.stages import stages
    from flywheel.jobs.evaluation_args import evaluation_args
    from flywheel.workspace import Workspace

    config = configure(profile, settings)
    workspace = Workspace(config)
    player = workspace.policy(policy)
    check_writable(json)
    count = episodes or config.eval.episodes
    # Not `eval-<version>`: that partition and report belong to the iteration, and this must not replace them.
    name = f"eval-{player.version}-{split}-{count}" + ("" if seed is None else f"-seed{seed}")
    with stages(config) as run:
        args = evaluation_args(workspace, player, run.tasks(split), split=split, episodes=count, seed=seed, name=name)
        report = run.run("evaluate", name, args)
    write_json(json, report)
    _show(report)


def _show(report: dict[str, Any]) -> None:
    families = report["by_family"].items()
    rows = [(name, f"{rates['solved']:.0f} of {rates['episodes']:.0f}", rate(rates)) for name, rates in families]
    show_table(("family", "solved", "success, 95% interval in %"), rows)
    shown = ("policy", "split", "episodes", "solved", "env_errors", "steps_per_second", "seconds")
    show_facts({"success": rate(report), **{name: report[name] for name in shown}})
    out().print(f"\nflywheel trajectories --partition {report['partition']} --failure", markup=False)
