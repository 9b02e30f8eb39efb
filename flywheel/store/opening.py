"""The store of a configuration, with the configured codec and durability."""

from flywheel.config import Config
from flywheel.errors import StoreError
from flywheel.store.store import TrajectoryStore


def open_store(config: Config) -> TrajectoryStore:
    """The store of the configured home; made when it is not there."""
    return TrajectoryStore(config.store_root, codec=config.store.codec, fsync=config.store.fsync)


def open_existing(config: Config) -> TrajectoryStore:
    """For readers: the store of a home that has one. Raises `StoreError`."""
    if not config.store_root.is_dir():
        raise StoreError(
            f"There is no trajectory store at {config.store_root}; run `flywheel demo`, or say where it is with "
            "--set home=FOLDER."
        )
    return open_store(config)
