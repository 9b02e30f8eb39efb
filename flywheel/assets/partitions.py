"""Iterations and nights: the two ways in which assets are cut."""

import warnings

import dagster as dg

from flywheel.config import Config
from flywheel.workspace import iteration_name

# Backfill policies are marked beta in Dagster 1.13, which the project pins.
warnings.filterwarnings("ignore", category=dg.BetaWarning)


def iterations(config: Config) -> dg.StaticPartitionsDefinition:
    """`iter-01` to the cap of the flywheel."""
    return dg.StaticPartitionsDefinition([iteration_name(i) for i in range(1, config.flywheel.max_iterations + 1)])


ITERATIONS = iterations(Config())
"""Stands for the configured iterations until `definitions` puts those in its place."""

NIGHTS = dg.DailyPartitionsDefinition("2026-01-01", end_offset=1)
"""The night of a day belongs to that day, hence the offset."""

IN_ORDER = dg.BackfillPolicy.multi_run(max_partitions_per_run=1)
"""Range backfills go iteration by iteration; without this their order is a set's, which changes with the hash seed."""


def iteration_of(partition: str) -> int:
    """`iter-03` -> 3."""
    return int(partition.rpartition("-")[2])
