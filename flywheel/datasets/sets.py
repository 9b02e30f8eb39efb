"""Training sets as Hugging Face `datasets`: what is kept of trajectories, images included.

One row is one conversation. `messages` is what people share and any trainer can read; rows that come from rollouts
also carry the ids as they were sampled, so that nothing is ever tokenised twice. Every set opens with
`datasets.load_from_disk`.
"""

import io
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

from flywheel.chat import Words
from flywheel.errors import DataError
from flywheel.types import Codec, Screenshot, Trajectory

_CODECS: dict[str, Codec] = {"PNG": "png", "WEBP": "webp", "JPEG": "jpeg"}
FEATURES = datasets.Features(
    {
        "trajectory_id": datasets.Value("string"),
        "task_id": datasets.Value("string"),
        "instruction": datasets.Value("string"),
        "family": datasets.Value("string"),
        "level": datasets.Value("int32"),
        "source": datasets.Value("string"),
        "policy": datasets.Value("string"),
        "iteration": datasets.Value("int32"),
        "reward": datasets.Value("float32"),
        "messages": datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")}),
        "turn_mask": datasets.List(datasets.Value("bool")),
        "images": datasets.List(datasets.Image()),
        "prompt_ids": datasets.List(datasets.List(datasets.Value("int32"))),
        "completion_ids": datasets.List(datasets.List(datasets.Value("int32"))),
    }
)


def row_of(trajectory: Trajectory, words: Words, source: str) -> dict[str, Any]:
    """One row. Turns that could not be read or executed stay as context and are masked."""
    shots = [turn.observation.screenshot for turn in trajectory.turns]
    return {
        "trajectory_id": trajectory.id,
        "task_id": trajectory.task.id,
        "instruction": trajectory.task.instruction,
        "family": trajectory.task.family,
        "level": trajectory.task.level,
        "source": source,
        "policy": trajectory.policy.version,
        "iteration": trajectory.iteration,
        "reward": trajectory.task_reward,
        "messages": words.messages(trajectory),
        "turn_mask": [turn.action is not None and turn.executed for turn in trajectory.turns],
        "images": [{"bytes": shot.encode().data, "path": None} for shot in shots if shot],
        "prompt_ids": [list(turn.prompt_ids) for turn in trajectory.turns],
        "completion_ids": [list(turn.completion_ids) for turn in trajectory.turns],
    }


def keep_per_task(trajectories: Iterable[Trajectory], most: int) -> list[Trajectory]:
    """At most `most` trajectories of each task (0: all), the shortest first, in a stable order."""
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_task[trajectory.task.id].append(trajectory)
    kept = []
    for task in sorted(by_task):
        ordered = sorted(by_task[task], key=lambda t: (len(t.turns), t.id))
        kept += ordered[:most] if most else ordered
    return kept


def save_set(rows: Sequence[dict[str, Any]], folder: Path, mixed_in: Path | None = None) -> None:
    """Write a set in place of whatever was there: the rows of the set `mixed_in`, then these.

    Raises `DataError` when there are no rows at all, when `mixed_in` is no set of ours, or when the disk is full; what
    was there before then stays.
    """
    if not rows and mixed_in is None:
        raise DataError(
            f"The set {folder.name} would be empty, because nothing succeeded that passed its filter; add "
            "demonstrations (tasks.demonstrations), train longer (sft.steps), or start with easier tasks (env.levels)."
        )
    columns = {name: [row[name] for row in rows] for name in FEATURES}
    made = datasets.Dataset.from_dict(columns, features=FEATURES)
    if mixed_in is not None:
        made = datasets.concatenate_datasets([_ours(mixed_in), made])
    staged = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        made.save_to_disk(staged)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise DataError(
            f"The set {folder} could not be written ({error}); free some space and run it again."
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    staged.replace(folder)


def load_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows with `images` as `Screenshot`s. Raises `DataError` where there is no set or one of another shape."""
    dataset = _opened(folder)
    missing = {"messages", "images"} - set(dataset.column_names)
    if missing:
        raise DataError(f"{folder} lacks the column {sorted(missing)[0]!r}, which every training set here has.")
    for row in dataset.cast_column("images", datasets.List(datasets.Image(decode=False))):
        yield {**row, "images": [_screenshot(image, folder) for image in row["images"]]}


def size_of(folder: Path) -> int:
    """Rows of a set; raises `DataError` where there is none."""
    return len(_opened(folder))


def _opened(folder: Path) -> datasets.Dataset:
    try:
        return datasets.load_from_disk(folder)
    except (FileNotFoundError, OSError, ValueError) as error:
        raise DataError(f"{folder} holds no training set ({str(error).splitlines()[0]}); make it again.") from error


def _ours(folder: Path) -> datasets.Dataset:
    dataset = _opened(folder)
    if dataset.features != FEATURES:
        raise DataError(f"{folder} has other columns than the sets made here, so it cannot be mixed in; name it apart.")
    return dataset


def _screenshot(image: dict[str, Any], folder: Path) -> Screenshot:
    """Whole images only: a truncated one would fail in the middle of training. Sets of others may name files."""
    try:
        data = Path(image["path"]).read_bytes() if image["bytes"] is None else image["bytes"]
        with Image.open(io.BytesIO(data)) as opened:
            codec = _CODECS.get(opened.format or "")
            if codec == "png":
                opened.verify()  # checksums: a tenth of the time that decoding takes
            else:
                opened.load()
            if codec is None:
                return Screenshot.from_array(np.asarray(opened.convert("RGB")))
            return Screenshot(data, opened.width, opened.height, codec)
    except (OSError, SyntaxError) as error:
        raise DataError(f"{folder} holds an image that cannot be read ({error}); make the set again.") from error
