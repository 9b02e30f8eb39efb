"""Where everything that is made lies, and how a name becomes a policy.

    home/tasks/<key>/                     train.jsonl, heldout.jsonl: shared between experiments of one key
    home/demonstrations/<key>/            a `datasets` dataset
    home/store/                           the trajectory store
    home/experiments/<experiment>/
        checkpoints/<version>/            save_pretrained folder, processor, policy.json
        checkpoints/<version>.trainer/    states to resume from, while that version is in the making
        sets/<iteration>/                 filtered SFT set, a `datasets` dataset
        reports/<name>.json               evaluation reports
        runs/<stage>-<key>/               spec.json, result.json, metrics.jsonl, log.txt of the heavy jobs

`<key>` is a hash of all that decides the content, so changing a knob never overwrites another's data.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flywheel.config import Config
from flywheel.errors import CheckpointError, PolicyError
from flywheel.types import PolicyRef


def iteration_name(iteration: int) -> str:
    """1 -> `iter-01`: partition key, policy version and store partition of that iteration."""
    return f"iter-{iteration:02d}"


def teacher_partition(partition: str) -> str:
    """Store partition of the episodes that a teacher played for another partition."""
    return f"teacher-{partition}"


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folders of one configuration."""

    config: Config

    @property
    def tasks_key(self) -> str:
        """Hash of what decides the task splits."""
        content = [self.config.seed, self.config.env.model_dump(), self.config.tasks.model_dump()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def tasks_dir(self) -> Path:
        return self.config.home_path / "tasks" / self.tasks_key

    @property
    def demonstrations_dir(self) -> Path:
        return self.config.home_path / "demonstrations" / self.tasks_key

    def checkpoint_dir(self, version: str) -> Path:
        return self.config.experiment_dir / "checkpoints" / version

    def set_dir(self, iteration: int) -> Path:
        return self.config.experiment_dir / "sets" / iteration_name(iteration)

    def report_path(self, name: str) -> Path:
        return self.config.experiment_dir / "reports" / f"{name}.json"

    def run_dir(self, stage: str, key: str) -> Path:
        return self.config.experiment_dir / "runs" / f"{stage}-{key}"

    def policy(self, reference: str) -> PolicyRef:
        """A version of this experiment, the folder of a checkpoint of ours, or that of any saved model.

        Raises `PolicyError`, or `CheckpointError` for a version whose `policy.json` is damaged or gone.
        """
        own, given = self.checkpoint_dir(reference), Path(reference).expanduser()
        if own.name == reference != ".." and own.is_dir():
            return read_policy(own)
        if (given / "policy.json").is_file():
            return read_policy(given)
        if (given / "config.json").is_file():
            return PolicyRef(given.name, str(given.absolute()))
        known = ", ".join(self.versions()) or "none yet"
        raise PolicyError(
            f"There is no policy '{reference}' in experiment '{self.config.experiment}' (known: {known}); "
            "name one of these, give the folder of a checkpoint, or run `flywheel demo` to make some."
        )

    def versions(self) -> list[str]:
        """Finished checkpoints of this experiment, oldest first."""
        files = (self.config.experiment_dir / "checkpoints").glob("*/policy.json")
        ordered = sorted(files, key=lambda path: path.stat().st_mtime_ns)
        return [path.parent.name for path in ordered if not path.parent.name.startswith(".")]


def read_policy(folder: Path) -> PolicyRef:
    """The reference that a checkpoint folder carries. Raises `CheckpointError`."""
    file = folder / "policy.json"
    try:
        return PolicyRef(**json.loads(file.read_text()) | {"uri": str(folder.absolute())})
    except FileNotFoundError as error:
        raise CheckpointError(f"{file} is missing, so the checkpoint is unfinished; make it again.") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged; make the checkpoint again.") from error


def write_policy(folder: Path, policy: PolicyRef) -> None:
    """Mark a checkpoint folder as finished: written last, and atomically."""
    staged = folder / "policy.json.tmp"
    staged.write_text(json.dumps(asdict(policy), indent=2))
    staged.replace(folder / "policy.json")
