from asset_stages.made_up import knob, make_policy, note, skill_of
from flywheel.types import PolicyRef


def run(config, args, progress):
    note(config, "sft", args)
    for step in range(args["steps"]):
        progress.metrics(step, {"loss": 1 / (step + 1)})
        progress.advance(step + 1, args["steps"], "steps")
    gain = float(knob(config, f"gain-{args['version']}") or {"sft": 0.3}.get(args["version"], 0.1))
    skill = min(skill_of(args["init"]) + gain, 0.7)
    policy = make_policy(args["out"], args["version"], PolicyRef(**args["init"]), skill)
    return {"policy": policy, "steps": args["steps"], "loss": 0.1, "tokens_per_second": 1000.0, "seconds": 0.01}
