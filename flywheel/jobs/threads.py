"""CPU threads of a heavy job."""

import os

import torch

from flywheel.config import Config


def use_threads(config: Config) -> int:
    """Give torch `model.threads` threads (0: all cores that this process may use); how many that is."""
    threads = config.model.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads
