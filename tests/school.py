"""A policy that was taught enough to be right now and then, so that rollouts have successes and failures."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel.config import Config
from flywheel.datasets.sets import row_of, save_set
from flywheel.jobs import sft
from tests.tiny import Notes, Tiny, demonstrations, small_config, some_tasks, write_tasks

SETTINGS = (
    "sft.batch=8",
    "sft.lr=3e-3",
    "sft.steps=30",
    "rollout.max_tokens=32",
    "rollout.tasks=6",
    "rollout.samples=2",
    "env.max_turns=3",
    "eval.max_turns=3",
    "rl.families=[]",
    "rl.shaping=0.3",
    "rl.prompts=3",
    "rl.group=4",
    "rl.steps=3",
    "rl.minibatches=1",
    "rl.save_every=1",
)


@dataclass(frozen=True)
class School:
    """Where the pupil was made and what came of it. `sft` is the result of the stage, `notes` what it said."""

    tiny: Tiny
    home: Path
    tasks: Path
    shown: Path
    sft: dict[str, Any]
    notes: Notes

    @property
    def policy(self) -> dict[str, Any]:
        policy: dict[str, Any] = self.sft["policy"]
        return policy

    def config(self, home: Path, *settings: str) -> Config:
        return small_config(home, *SETTINGS, *settings)


def make_school(tiny: Tiny, home: Path) -> School:
    """Thirty steps on eight demonstrations of two families: about a third of the tasks are solved then."""
    easy: dict[str, Any] = {"families": ("click", "check")}
    shown = demonstrations(tiny, some_tasks(8, **easy))
    save_set([row_of(trajectory, tiny.chat.words, "demonstration") for trajectory in shown], home / "shown")
    args = {
        "sets": [str(home / "shown")],
        "init": asdict(tiny.policy),
        "out": str(home / "sft"),
        "version": "sft",
        "steps": 30,
        "seed": 1,
    }
    notes = Notes()
    result = sft.run(small_config(home, *SETTINGS), args, notes)
    return School(tiny, home, write_tasks(home, 16, **easy), home / "shown", result, notes)
