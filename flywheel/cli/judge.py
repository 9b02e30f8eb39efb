"""`flywheel judge`: how far the outcome judge agrees with the evaluators that there are."""

import asyncio
from typing import Annotated

import typer

from flywheel.cli.options import EMBEDDED, JsonPath, Profile, Settings, configure
from flywheel.cli.output import check_writable, show_facts, show_table, write_json


def judge(
    partition: Annotated[str, typer.Option(help="Partition whose episodes are judged again, e.g. `eval-sft`.")],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many episodes.")] = 100,
    json: JsonPath = None,
    profile: Profile = EMBEDDED,
    settings: Settings = None,
) -> None:
    """Ask the judge (sections `judge` and `hosted`) about episodes that evaluators have judged, and compare."""
    from flywheel.errors import DataError
    from flywheel.evaluation.agreement import agreement, to_json
    from flywheel.rollout.judge import ask_verdicts
    from flywheel.store.opening import open_existing

    config = configure(profile, settings)
    check_writable(json)
    found = open_existing(config).iter(partition, experiment=config.experiment)
    known = [one for one in found if one.task_reward is not None and one.turns][:limit]
    if not known:
        raise DataError(f"No episode of {partition} was judged by an evaluator, so there is nothing to compare with.")
    verdicts = asyncio.run(ask_verdicts(known, config.hosted, config.judge))
    said = [None if verdict.share is None else verdict.share >= config.judge.accept for verdict in verdicts]
    result = agreement(said, [one.success for one in known])
    write_json(json, to_json(result))
    rows = [
        (name, f"{rate.hits} of {rate.of}", f"{100 * rate.interval.low:.1f} to {100 * rate.interval.high:.1f}")
        for name, rate in result.rates.items()
    ]
    show_table(("judge against evaluators", "episodes", "95% interval in %"), rows)
    show_facts({"judge": config.hosted.model, "episodes": len(known), "abstained": result.abstained})
