from asset_stages.made_up import knob, make_policy, note, publish, skill_of
from flywheel.errors import TrainingPausedError
from flywheel.types import PolicyRef


def run(config, args, progress):
    note(config, "grpo", args)
    if reason := knob(config, "paused"):
        raise TrainingPausedError(reason)
    init = PolicyRef(**args["init"])
    skill = skill_of(args["init"])
    published = publish(config, args, init, skill, 20)
    policy = make_policy(args["out"], args["version"], init, skill + 0.05)
    played = {"updates": 4, "kept_update": 2, "episodes": 20, "success_first": skill, "success_last": skill + 0.05}
    return {
        **played,
        **MEASURED,
        "policy": policy,
        "attempt": published["attempt"],
        "seconds": 0.01,
    }


MEASURED = {
    "guards": [
        {
            "guard": "entropy",
            "bad": "below",
            "warn": 0.5,
            "react": 0.3,
            "last": 0.8,
            "worst": 0.2512,
            "warned": 1,
            "reacted": 1,
        },
        {
            "guard": "ref_kl",
            "bad": "above",
            "warn": 0.05,
            "react": None,
            "last": None,
            "worst": None,
            "warned": 0,
            "reacted": 0,
        },
    ],
    "reactions": [
        {"update": 3, "why": "entropy is 0.25, below 0.3", "reaction": "halve_lr", "did": "the learning rate is 1e-4"}
    ],
    "validation": [
        {"update": 0, "success": 0.25, "ci_low": 0.2, "ci_high": 0.3},
        {"update": 2, "success": 0.5, "ci_low": 0.44, "ci_high": 0.56},
    ],
}
