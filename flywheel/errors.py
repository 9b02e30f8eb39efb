"""Every exception that flywheel raises on purpose.

    FlywheelError
    ├── ConfigError            a profile, key or value that cannot be used
    ├── TaskError              a malformed task file, a duplicate id, an overlap of splits
    ├── ActionError            model text that no action space can read
    ├── EnvError               an episode that could not be played or judged
    │   ├── InfrastructureError    the machine, the network, a lost worker
    │   ├── SetupError             the task's own set-up steps failed
    │   └── EvaluatorError         the checker itself failed
    ├── AgentError             the policy's server or engine failed to answer
    ├── StoreError             the trajectory store refused or could not do it
    │   ├── PartitionBusyError     another process holds the partition
    │   ├── CorruptTrajectoryError bytes that do not match their recorded hash
    │   ├── StoreFullError         no space left on the device
    │   └── ReadOnlyError          a statement that would write
    ├── DataError              a training set that cannot be read, or holds nothing to train on
    ├── PolicyError            a policy that is missing or cannot be loaded
    │   └── CheckpointError        a checkpoint that is incomplete or corrupt
    └── TrainingError          a batch or a step that must not be taken
        ├── PackingError           packed rows without their 4-row position ids
        └── TrainingPausedError    a guard stopped training; it goes on from its state

Each message is one sentence: what is wrong, where, and what mends it. A bug is an ordinary Python
exception and stops the run; these are conditions that a user or an environment can cause.
"""


class FlywheelError(Exception):
    """Base of the tree; the command line prints its message and exits with status 1."""


class ConfigError(FlywheelError):
    """A profile, key or value that cannot be used."""


class TaskError(FlywheelError):
    """A malformed task file, a duplicate id, or splits that overlap."""


class ActionError(FlywheelError):
    """Model text that no action space can read."""


class EnvError(FlywheelError):
    """An episode that could not be played or judged; `kind` is the outcome it leads to."""

    kind = "infrastructure"


class InfrastructureError(EnvError):
    """The machine, the network or a worker was lost. Never scored as 0."""

    kind = "infrastructure"


class SetupError(EnvError):
    """The task's own set-up steps failed."""

    kind = "setup"


class EvaluatorError(EnvError):
    """The checker itself failed, so nothing is known about success."""

    kind = "evaluator"


class AgentError(FlywheelError):
    """The policy's server or engine failed to answer."""

    kind = "agent"


class StoreError(FlywheelError):
    """The trajectory store refused or could not do what was asked."""


class PartitionBusyError(StoreError):
    """Another process holds the partition."""


class CorruptTrajectoryError(StoreError):
    """Stored bytes do not match their recorded hash."""


class StoreFullError(StoreError):
    """No space left where the store lives."""


class ReadOnlyError(StoreError):
    """A statement that would write was given to a read-only connection."""


class DataError(FlywheelError):
    """A training set that cannot be read, or that holds nothing to train on."""


class PolicyError(FlywheelError):
    """A policy that is missing or cannot be loaded."""


class CheckpointError(PolicyError):
    """A checkpoint that is incomplete or corrupt."""


class TrainingError(FlywheelError):
    """A batch or a step that must not be taken."""


class PackingError(TrainingError):
    """Packed rows without the 4-row position ids that keep documents apart."""


class TrainingPausedError(TrainingError):
    """A guard stopped policy gradient; its state is kept, and the same run goes on from it."""
