"""What each of several processes runs: `torchrun ... -m tests.trainers.together FOLDER`, with `plan.json` in it.

The plan: policy (a folder), samples (a pickle), settings, and runs: name -> steps, states folder. The first process
leaves `curve-NAME.json` and the whole weights, `weights-NAME.pt`.
"""

import json
import pickle
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from flywheel.config import Config
from flywheel.modeling.policy import load_policy
from flywheel.sections import ModelConfig, SftConfig
from flywheel.trainers.sft import train_sft
from flywheel.trainers.sharding import gathered
from flywheel.trainers.tuning import tuned
from flywheel.types import PolicyRef
from tests.tiny import Notes


def main(folder: Path) -> None:
    processes = PartialState(cpu=True)
    torch.set_num_threads(1)
    plan = json.loads((folder / "plan.json").read_text())
    samples = pickle.loads((folder / "samples.pickle").read_bytes())
    for name, run in plan["runs"].items():
        config = Config.model_validate(plan["config"])
        model, chat = load_policy(config, PolicyRef("start", plan["policy"]))
        policy, notes = tuned(model, chat, ModelConfig(bucket=64)), Notes()
        settings = SftConfig(**plan["sft"], save_every=run["save_every"], held=run.get("held", "layer"))
        states = folder / run["states"]
        train_sft(policy, samples, settings, steps=run["steps"], seed=1, states=states, report=notes)
        weights = gathered(model, torch.float32)
        if processes.is_main_process:
            (folder / f"curve-{name}.json").write_text(json.dumps(notes.curve))
            torch.save(weights, folder / f"weights-{name}.pt")
        processes.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
