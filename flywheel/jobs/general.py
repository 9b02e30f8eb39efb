"""General conversations among the trajectories, against forgetting what a model could do before it used computers."""

from pathlib import Path

import numpy as np

from flywheel.chat import Chat
from flywheel.datasets.sets import load_rows
from flywheel.errors import DataError
from flywheel.sections import SftConfig
from flywheel.seeds import derive_seed
from flywheel.trainers.documents import sample_of
from flywheel.types import TrainingSample


def general_samples(config: SftConfig, chat: Chat, trajectories: int, seed: int) -> list[TrainingSample]:
    """So many conversations of `sft.mix` that they are `sft.mix_share` of the whole set; none without a folder.

    Drawn without replacement as long as there are enough, the same for the same seed.

    Raises `DataError` where the folder holds no set or an empty one.
    """
    if not config.mix:
        return []
    rows = list(load_rows(Path(config.mix).expanduser()))
    if not rows:
        raise DataError(f"The general data in {config.mix} (sft.mix) has no rows; name another folder.")
    count = round(trajectories * config.mix_share / (1 - config.mix_share))
    random = np.random.default_rng(derive_seed(seed, "mix"))
    rounds = [random.permutation(len(rows)) for _ in range(-(-count // len(rows)))]
    chosen = np.concatenate(rounds)[:count].tolist() if rounds else []
    return [sample_of(rows[index], chat) for index in chosen]
