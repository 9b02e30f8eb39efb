"""The folder that desktop-env calls its cache, one for each rollout, filled from the offline cache.

desktop-env keeps `<cache>/<task id>` for everything: downloads, and what the evaluator fetches from the guest. Shared
between concurrent rollouts of one task, they would overwrite each other's evidence.
"""

import os
import shutil
from pathlib import Path

from flywheel.datasets.needs import cache_name, downloads
from flywheel.errors import InfrastructureError, SetupError
from flywheel.types import Task


def fill_cache(task: Task, offline: Path, folder: Path) -> None:
    """Make `folder/<task id>` with every download of the task.

    Set-up files have a name of their own and are only read: they are hard-linked. What the evaluator compares with
    stands where it also writes, so it is copied. Raises `SetupError` when a file is missing, `InfrastructureError` when
    the disk is full.
    """
    rollout = folder / task.id
    try:
        rollout.mkdir(parents=True)
        for file in downloads(task):
            source, target = offline / cache_name(task.id) / file.name, rollout / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not source.is_file():
                raise SetupError(f"Task {task.id} needs {file.url}, which is not at {source}.")
            if not _link(source, target):
                shutil.copyfile(source, target)
    except OSError as error:
        raise InfrastructureError(f"The files of task {task.id} cannot be laid out in {rollout}: {error}.") from error


def _link(source: Path, target: Path) -> bool:
    """Only files under `<uuid>_<name>` are linked; False across file systems too."""
    if "_" not in source.name or len(source.name.partition("_")[0]) != 36:
        return False
    try:
        os.link(source.resolve(), target)
    except OSError:
        return False
    return True
