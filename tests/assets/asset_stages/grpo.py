from asset_stages.made_up import make_policy, note, publish, skill_of
from flywheel.types import PolicyRef


def run(config, args, progress):
    note(config, "grpo", args)
    init = PolicyRef(**args["init"])
    skill = skill_of(args["init"])
    published = publish(config, args, init, skill, 20)
    policy = make_policy(args["out"], args["version"], init, skill + 0.05)
    played = {"updates": 4, "episodes": 20, "success_first": skill, "success_last": skill + 0.05}
    return {**played, "policy": policy, "attempt": published["attempt"], "seconds": 0.01}
