from asset_stages.made_up import note, publish, skill_of
from flywheel.types import PolicyRef


def run(config, args, progress):
    note(config, "rollouts", args)
    result = publish(config, args, PolicyRef(**args["policy"]), skill_of(args["policy"]), 20)
    return {**result, "judged": 20, "reward_terms": {"task": 0.5, "format": 0.1}}
