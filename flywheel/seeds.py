"""Seeds derived from names, so that any stage repeats alone."""

import hashlib


def derive_seed(seed: int, *scope: str | int) -> int:
    """A 63-bit seed for one use, e.g. `derive_seed(cfg.seed, "rollout", 3, task_id, 0)`.

    Independent of process, platform and Python's hash seed; two different scopes collide with
    probability 2**-63.
    """
    name = "\x1f".join([str(seed), *map(str, scope)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
