"""CPU threads of a heavy job."""

import os

import torch

from flywheel.config import Config


def use_threads(config: Config) -> int:
    """Give torch `model.threads` threads (0: the cores that this process may use, shared with those that a launcher
    started beside it); how many that is."""
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = config.model.threads or max(1, len(os.sched_getaffinity(0)) // beside)
    torch.set_num_threads(threads)
    return threads
