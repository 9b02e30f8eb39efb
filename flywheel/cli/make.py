"""Commands that make what training needs: base policy, demonstrations, rollouts, filtered sets."""

from dataclasses import asdict
from typing import Annotated

import typer

from flywheel.cli.options import EMBEDDED, PolicyName, Profile, Seed, Settings, check_folder_name, configure
from flywheel.cli.output import out, rate, show_facts

Iteration = Annotated[
    int | None, typer.Option("--iteration", "-i", min=1, help="Iteration of the flywheel that this belongs to.")
]


def base(profile: Profile = EMBEDDED, settings: Settings = None) -> None:
    """Build the base policy (or load it from the hub) as version `base`."""
    from flywheel.cli.stages import stages

    with stages(configure(profile, settings)) as run:
        result = run.make_base()
    show_facts({**result["metrics"], "policy": result["policy"]["uri"], "seconds": result["seconds"]})


def demonstrations(profile: Profile = EMBEDDED, settings: Settings = None) -> None:
    """Have the oracle solve some training tasks, as a `datasets` dataset."""
    from flywheel.cli.stages import stages

    with stages(configure(profile, settings)) as run:
        result = run.make_demonstrations()
        folder = run.workspace.demonstrations_dir
    counts = {name: result[name] for name in ("trajectories", "turns", "seconds")}
    show_facts({**counts, "folder": folder})


def rollout(
    policy: PolicyName,
    iteration: Iteration = None,
    partition: Annotated[
        str | None, typer.Option(help="Partition of the store; by default that of the iteration, or `rollout-REF`.")
    ] = None,
    seed: Seed = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Let a policy play training tasks; everything it does goes to the store."""
    from flywheel.cli.stages import stages
    from flywheel.seeds import derive_seed
    from flywheel.workspace import Workspace, iteration_name

    config = configure(profile, settings)
    check_folder_name("partition", partition)
    player = Workspace(config).policy(policy)
    name = partition or (iteration_name(iteration) if iteration else f"rollout-{player.version}")
    args = {
        "policy": asdict(player),
        "partition": name,
        "iteration": iteration or 0,
        "seed": derive_seed(config.seed, "rollouts", iteration or 0) if seed is None else seed,
    }
    with stages(config) as run:
        result = run.run("rollouts", name, {**args, "tasks": run.tasks("train")})
    shown = ("episodes", "solved", "env_errors", "steps", "steps_per_second", "seconds")
    show_facts({"policy": player.version, "success": rate(result), **{key: result[key] for key in shown}})
    query = f"SELECT family, avg(success::INT) FROM episodes WHERE partition = '{name}' GROUP BY family"
    out().print(f'\nflywheel sql "{query}"', markup=False)


def sft_set(
    iteration: Annotated[int, typer.Option("--iteration", "-i", min=1, help="Iteration whose rollouts are filtered.")],
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Keep the successes of an iteration's rollouts, as a `datasets` dataset to train on."""
    from flywheel.cli.stages import stages
    from flywheel.seeds import derive_seed
    from flywheel.workspace import iteration_name

    config = configure(profile, settings)
    with stages(config) as run:
        folder = run.workspace.set_dir(iteration)
        args = {
            "iteration": iteration,
            "out": str(folder),
            "demonstrations": run.demonstrations() if config.flywheel.demonstrations else None,
            "seed": derive_seed(config.seed, "sft_set", iteration),
        }
        result = run.run("sft_set", iteration_name(iteration), args)
    shown = ("trajectories", "successes", "from_demonstrations", "turns", "tokens")
    show_facts({**{key: result.get(key) for key in shown}, "folder": folder})
