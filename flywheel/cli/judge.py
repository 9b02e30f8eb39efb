"""`flywheel judge`: how far the outcome judge agrees with the evaluators that there are."""

from typing import Annotated

import typer

from flywheel.cli.options import EMBEDDED, JsonPath, Profile, Settings, check_folder_name, configure
from flywheel.cli.output import check_writable, show_facts, show_table, write_json


def judge(
    partition: Annotated[str, typer.Option(help="Partition whose episodes are judged again, e.g. `eval-sft`.")],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many episodes.")] = 100,
    json: JsonPath = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Ask the judge (`judge.policy`, or the model of section `hosted`) about judged episodes, and compare."""
    from flywheel.cli.stages import stages

    config = configure(profile, settings)
    check_folder_name("partition", partition)
    check_writable(json)
    with stages(config) as run:
        result = run.look("judge", partition, {"partition": partition, "limit": limit})
    write_json(json, result)
    rows = [
        (name, f"{rate['hits']} of {rate['of']}", f"{100 * rate['low']:.1f} to {100 * rate['high']:.1f}")
        for name, rate in ((name, result[name]) for name in ("accuracy", "precision", "recall"))
    ]
    show_table(("judge against evaluators", "episodes", "95% interval in %"), rows)
    show_facts({name: result[name] for name in ("judge", "episodes", "abstained")})
