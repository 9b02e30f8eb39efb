"""Commands that train: on demonstrations, on the student's own successes, by policy gradient."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flywheel.cli.options import EMBEDDED, PolicyName, Profile, Seed, Settings, check_folder_name, configure
from flywheel.cli.output import show_facts

train = typer.Typer(no_args_is_help=True, help="Train a policy: `sft` on trajectories, `grpo` by policy gradient.")

Version = Annotated[str | None, typer.Option("--version", help="Name of the trained policy.")]


@train.command()
def sft(
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="REF", help="What training starts from; by default `base`.")
    ] = None,
    sets: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="DIR", help="Training set; may be given many times. Default: demonstrations."),
    ] = None,
    version: Version = None,
    seed: Seed = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Supervised fine-tuning for `sft.steps` steps; without options, of the base policy on the demonstrations."""
    from flywheel.cli.stages import BASE, stages
    from flywheel.errors import DataError
    from flywheel.seeds import derive_seed
    from flywheel.workspace import Workspace

    config = configure(profile, settings)
    check_folder_name("version", version)
    given = Workspace(config).policy(policy) if policy not in (None, BASE) else None
    for folder in sets or ():
        if not (folder / "dataset_info.json").is_file():
            raise DataError(f"{folder} holds no training set; make one with `flywheel sft-set` or `demonstrations`.")
    with stages(config) as run:
        result = run.train(
            given or run.base(),
            version or "sft",
            [str(folder.absolute()) for folder in sets or ()] or [run.demonstrations()],
            config.sft.steps,
            derive_seed(config.seed, "sft", 0) if seed is None else seed,
        )
    shown = ("trajectories", "steps", "loss", "tokens_per_second", "seconds")
    show_facts({**_trained(result), **{name: result.get(name) for name in shown}})


@train.command()
def grpo(
    policy: PolicyName,
    version: Version = None,
    seed: Seed = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Policy gradient with `rl.algorithm` (grpo, gspo, rloo, ...) for `rl.steps` updates."""
    from flywheel.cli.stages import stages
    from flywheel.seeds import derive_seed
    from flywheel.workspace import Workspace

    config = configure(profile, settings)
    check_folder_name("version", version)
    init = Workspace(config).policy(policy)
    name = version or f"grpo-{init.version}"
    args = {
        "init": asdict(init),
        "out": str(Workspace(config).checkpoint_dir(name)),
        "version": name,
        "partition": name,
        "iteration": 0,
        "seed": derive_seed(config.seed, "grpo", 0) if seed is None else seed,
    }
    with stages(config) as run:
        result = run.run("grpo", name, {**args, "tasks": run.tasks("train")})
    shown = ("algorithm", "updates", "kept_update", "episodes", "success_first", "success_last")
    speed = ("tokens_per_second", "seconds")
    show_facts({**_trained(result), **{key: result.get(key) for key in (*shown, *speed)}})


def _trained(result: dict[str, dict[str, str]]) -> dict[str, str]:
    policy = result["policy"]
    return {"policy": policy["version"], "from": policy["parent"], "folder": policy["uri"]}
