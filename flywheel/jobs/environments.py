"""The configured kind of desktop. Light: no model is loaded."""

from flywheel.config import Config
from flywheel.envs.base import Env, ObserveOptions
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.types import Size


def make_env(config: Config) -> Env:
    """One desktop of the configured kind."""
    if config.env.backend == "remote":
        from flywheel.envs.pool import remote_env  # 50 ms of httpx, which a simulated desktop has no use for

        observe = ObserveOptions(image=config.env.image, accessibility=config.env.accessibility)
        return remote_env(config.env.urls, observe=observe, wait=config.env.wait_seconds)
    return SimulatedEnv(Size(config.env.width, config.env.height), config.env.layout, config.env.accessibility)
