"""The outcome judge as a stage: it judges again what evaluators have judged, and is measured by them."""

from typing import Any

from flywheel.config import Config
from flywheel.errors import DataError
from flywheel.evaluation.agreement import agreement, to_json
from flywheel.jobs.base import Progress
from flywheel.jobs.judging import verdicts
from flywheel.store.opening import open_existing


def run(config: Config, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """`args`: partition, limit. Raises `DataError` where no episode of the partition was judged by an evaluator."""
    partition = args["partition"]
    found = open_existing(config).iter(partition, experiment=config.experiment)
    known = [one for one in found if one.task_reward is not None and one.turns][: args["limit"]]
    if not known:
        raise DataError(f"No episode of {partition} was judged by an evaluator, so there is nothing to compare with.")
    shares = [verdict.share for verdict in verdicts(config, known)]
    said = [None if share is None else share >= config.judge.accept for share in shares]
    result = agreement(said, [one.success for one in known])
    progress.log(f"{partition}: {len(known) - result.abstained} of {len(known)} episodes got a verdict.")
    judge = config.judge.policy or config.hosted.model
    return {**to_json(result), "judge": judge, "episodes": len(known)}
